"""The page's looks, light and dark, and the few lines of script that show numbers under the pointer.

The colours are told apart by people who do not see red and green alike: blue against orange and vermilion, each of another
lightness (after the palette of Okabe and Ito). Heat is one hue from light to dark; in the dark, from dark to light.
"""

CSS = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1c2430;--faint:#5d6878;--rule:#e3e7ec;
--blue:#0072b2;--green:#009e73;--amber:#e69f00;--red:#c8420a;--grey:#9aa5b4;--violet:#8a5fa8;--sky:#56b4e9;
--cold:#e8eef6;--hot:#08306b}
@media (prefers-color-scheme:dark){:root{--paper:#12161c;--card:#1a2029;--ink:#e6eaf0;--faint:#98a3b3;--rule:#2f3845;
--blue:#56b4e9;--green:#2fc79a;--amber:#f2b632;--red:#ff7a45;--grey:#66717f;--violet:#c79be0;--sky:#9bd3f5;
--cold:#232c38;--hot:#cfe6ff}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 60px}h1{font-size:22px;margin:0 0 2px;font-weight:650}
h2{font-size:14px;margin:0 0 2px;font-weight:650}.why{color:var(--faint);font-size:12.5px;margin:0 0 8px}
header{margin-bottom:18px}header p{margin:0;color:var(--faint);overflow-wrap:anywhere}
code{font:12px ui-monospace,Menlo,Consolas,monospace}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;margin:0 0 16px}
.tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tile{padding:12px 14px;min-width:0}
.tile b{display:block;font-size:21px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25;white-space:nowrap}
.tile span{color:var(--faint);font-size:12px}.tile.good b{color:var(--blue)}.tile.fair b{color:var(--amber)}
.tile.bad b,b.bad{color:var(--red)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:16px;margin-bottom:16px}
.card{padding:14px 16px 10px;min-width:0}.full{margin-bottom:16px}svg{width:100%;height:auto;display:block;overflow:visible}
.chart{position:relative}
.legend,.scale{display:flex;gap:4px 14px;font-size:12px;color:var(--faint);margin-bottom:4px;flex-wrap:wrap}.scale{margin-top:6px}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px;background:var(--c)}
.swatch{display:inline-block;width:22px;height:10px;border-radius:3px;margin-right:5px;background:var(--shade)}
.grid{stroke:var(--rule);stroke-width:1}.axis{fill:var(--faint);font-size:10.5px;font-variant-numeric:tabular-nums}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.dot{fill:var(--c)}
.area{fill:var(--c);opacity:.8}.fill{fill:var(--c)}.cursor{stroke:var(--faint);stroke-dasharray:3 3;display:none}
.cell,.swatch{--shade:color-mix(in oklab,var(--hot) calc(var(--heat,0)*100%),var(--cold))}.cell{fill:var(--shade);rx:3}
.cell.none,.swatch.none{--shade:var(--rule);opacity:.45}.wide{min-width:900px}
.blue{--c:var(--blue)}.green{--c:var(--green)}.amber{--c:var(--amber)}.red{--c:var(--red)}.violet{--c:var(--violet)}
.line.green,.line.amber{stroke-dasharray:5 3}.line.red{stroke-width:2.4}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}th{font-weight:500;color:var(--faint);text-align:left;
font-size:12px;padding:4px 8px;border-bottom:1px solid var(--rule);white-space:nowrap}td{padding:5px 8px;border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}.number{text-align:right;white-space:nowrap}.faint{color:var(--faint)}.name{white-space:nowrap;max-width:300px;
overflow:hidden;text-overflow:ellipsis}.bar{width:46%}.bar span{display:inline-block;height:11px;background:var(--c);vertical-align:middle}
.bar span:first-child{border-radius:3px 0 0 3px}.bar span:last-child{border-radius:0 3px 3px 0}
.scroll{overflow-x:auto}.scroll td.name,.scroll th:first-child{position:sticky;left:0;background:var(--card)}
.meter{display:inline-block;width:64px;height:7px;border-radius:4px;background:var(--rule);vertical-align:middle;margin-left:8px;--c:var(--amber)}
.meter.good{--c:var(--blue)}.meter.bad{--c:var(--red)}.meter i{display:block;height:100%;border-radius:4px;background:var(--c)}
.lifeline{min-width:240px;width:36%}.timeline{height:18px}.track{fill:var(--rule)}.error{max-width:260px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap;color:var(--faint)}.step{--c:var(--sky);fill:var(--c)}.step.waiting{--c:var(--grey)}.step.done{--c:var(--blue)}
.step.retried{--c:var(--amber)}.step.died{--c:var(--red)}.step.expired{--c:var(--violet)}.nothing{color:var(--faint)}
.tip{position:absolute;pointer-events:none;background:var(--ink);color:var(--paper);border-radius:7px;padding:7px 10px;font-size:12px;
display:none;white-space:nowrap;z-index:2}.tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px;background:var(--c)}
footer{color:var(--faint);font-size:12px;margin-top:18px}@media (max-width:900px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media (max-width:560px){main{padding:16px 12px 40px}.tiles{grid-template-columns:repeat(2,1fr);gap:8px}.tile{padding:9px 11px}
.tile b{font-size:18px}.card{padding:12px 12px 8px}.axis{font-size:15px}.wide .axis{font-size:13px}.name{max-width:42vw}
.slow thead{display:none}.slow tr{display:grid;grid-template-columns:1fr auto auto auto;padding:6px 0;border-bottom:1px solid var(--rule)}
.slow td{border:0;padding:2px 4px;position:static}.slow .name{max-width:none;grid-column:1/-1}.slow td:nth-child(2){text-align:left}
.slow .lifeline,.slow .error{grid-column:1/-1;max-width:none;width:auto;white-space:normal}
.slow .error.none{display:none}.bars{table-layout:fixed}.bars .bar{width:14%}.bars .number{width:62px}.bars td,.bars th{padding-left:4px;padding-right:4px}
.bars .name{max-width:none;white-space:normal;overflow-wrap:anywhere}}
@media print{.card,.tile{break-inside:avoid}}
"""

SCRIPT = """
for(const chart of document.querySelectorAll('.chart')){
 const data=JSON.parse(chart.querySelector('script').textContent),svg=chart.querySelector('svg'),line=svg.querySelector('.cursor');
 const tip=document.createElement('div');tip.className='tip';chart.append(tip);
 svg.addEventListener('pointermove',event=>{
  const box=svg.getBoundingClientRect(),x=(event.clientX-box.left)/box.width*data.width,n=data.times.length;
  const part=(x-data.left)/(data.right-data.left),at=Math.max(0,Math.min(n-1,Math.floor(part*n)));
  const on=data.left+(at+.5)/n*(data.right-data.left);
  line.setAttribute('x1',on);line.setAttribute('x2',on);line.style.display='block';
  tip.replaceChildren(document.createTextNode(data.times[at]));
  for(const one of data.series){const row=document.createElement('div'),key=document.createElement('i');key.className=one.colour;
   row.append(key,one.name+': '+one.values[at]);tip.append(row)}
  tip.style.display='block';const px=on/data.width*box.width;
  tip.style.left=Math.min(Math.max(0,px+12),Math.max(0,box.width-tip.offsetWidth))+'px';tip.style.top='30px'});
 svg.addEventListener('pointerleave',()=>{line.style.display='none';tip.style.display='none'})}
"""
