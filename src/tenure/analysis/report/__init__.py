"""The report: one HTML file with everything in it, drawn here as SVG. It asks the network for nothing.

history.py     a history as tables: from a folder that `tenure spark history` keeps, or straight from a store's journal
gathering.py   the facts, asked of those tables                facts.py       what a report shows, as plain values
charts.py      lines, areas, bars, heat map, timelines         page.py        the page around them; style.py its looks
formatting.py  numbers and times as people read them
"""
