"""The report: one HTML file with everything in it, drawn here as SVG. Nothing in it asks the network for anything.

facts.py    what a report shows, as plain values        charts.py   lines, areas, bars, heat map, timelines
words.py    numbers and times as people read them       page.py     the page around them; style.py its looks
"""
