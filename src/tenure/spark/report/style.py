"""The page's looks, light and dark, and the few lines of script that show numbers under the pointer."""

CSS = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1c2430;--faint:#6b7686;--rule:#e3e7ec;
--blue:#3a6fd8;--green:#2a9d6f;--amber:#d9920b;--red:#d0435a;--grey:#9aa5b4;--violet:#7f5fd0;--teal:#1b93a5}
@media (prefers-color-scheme:dark){:root{--paper:#12161c;--card:#1a2029;--ink:#e6eaf0;--faint:#8e99a8;--rule:#2a323d;
--blue:#6b9bff;--green:#4cc38a;--amber:#f0b13c;--red:#f0697f;--grey:#66717f;--violet:#a98ff0;--teal:#45bccd}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 60px}h1{font-size:22px;margin:0 0 2px;font-weight:650}
h2{font-size:14px;margin:0 0 2px;font-weight:650}.why{color:var(--faint);font-size:12.5px;margin:0 0 8px}
header{margin-bottom:18px}header p{margin:0;color:var(--faint)}code{font:12px ui-monospace,Menlo,Consolas,monospace}
.tiles{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;margin:0 0 16px}
.tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tile{padding:12px 14px}.tile b{display:block;font-size:21px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25}
.tile span{color:var(--faint);font-size:12px}.tile.good b{color:var(--green)}.tile.bad b{color:var(--red)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:16px;margin-bottom:16px}
.card{padding:14px 16px 10px;min-width:0}.full{margin-bottom:16px}svg{width:100%;height:auto;display:block;overflow:visible}
.chart{position:relative}.legend{display:flex;gap:14px;font-size:12px;color:var(--faint);margin-bottom:4px;flex-wrap:wrap}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px;background:var(--c)}
.grid{stroke:var(--rule);stroke-width:1}.axis{fill:var(--faint);font-size:10.5px;font-variant-numeric:tabular-nums}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.dot{fill:var(--c)}
.area{fill:var(--c);opacity:.22}.fill{fill:var(--c)}.cursor{stroke:var(--faint);stroke-dasharray:3 3;display:none}
.cell{fill:color-mix(in oklab,var(--amber) calc(var(--heat)*100%),color-mix(in oklab,var(--blue) 12%,var(--card)));rx:3}
.cell.none{fill:var(--rule);opacity:.45}.blue{--c:var(--blue)}.green{--c:var(--green)}.amber{--c:var(--amber)}
.red{--c:var(--red)}.grey{--c:var(--grey)}.violet{--c:var(--violet)}.teal{--c:var(--teal)}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}th{font-weight:500;color:var(--faint);text-align:left;
font-size:12px;padding:4px 8px;border-bottom:1px solid var(--rule);white-space:nowrap}td{padding:5px 8px;border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}.number{text-align:right;white-space:nowrap}.faint{color:var(--faint)}.name{white-space:nowrap;max-width:300px;
overflow:hidden;text-overflow:ellipsis}.bar{width:46%}.bar span{display:inline-block;height:11px;background:var(--c);vertical-align:middle}
.bar span:first-child{border-radius:3px 0 0 3px}.bar span:last-child{border-radius:0 3px 3px 0;opacity:.55}.scroll{overflow-x:auto}
.meter{display:inline-block;width:64px;height:7px;border-radius:4px;background:var(--rule);vertical-align:middle;margin-left:8px}
.meter i{display:block;height:100%;border-radius:4px;background:var(--green)}.timeline{height:18px;min-width:260px}.track{fill:var(--rule)}
.step.waiting{fill:var(--grey)}.step.done{fill:var(--green)}.step.retried{fill:var(--amber)}.step.died{fill:var(--red)}
.step.expired{fill:var(--violet)}.step.released,.step.cancelled,.step.repaired,.step.held{fill:var(--teal)}.nothing{color:var(--faint)}
.tip{position:absolute;pointer-events:none;background:var(--ink);color:var(--paper);border-radius:7px;padding:7px 10px;font-size:12px;
display:none;white-space:nowrap;z-index:2}.tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px;background:var(--c)}
footer{color:var(--faint);font-size:12px;margin-top:18px}@media (max-width:900px){.tiles{grid-template-columns:repeat(3,1fr)}}@media print{.card,.tile{break-inside:avoid}}
"""

SCRIPT = """
for(const chart of document.querySelectorAll('.chart')){
 const data=JSON.parse(chart.querySelector('script').textContent),svg=chart.querySelector('svg'),line=svg.querySelector('.cursor');
 const tip=document.createElement('div');tip.className='tip';chart.append(tip);
 svg.addEventListener('mousemove',event=>{
  const box=svg.getBoundingClientRect(),x=(event.clientX-box.left)/box.width*data.width,n=data.times.length;
  const part=(x-data.left)/(data.right-data.left),at=Math.max(0,Math.min(n-1,Math.floor(part*n)));
  const on=data.left+(at+.5)/n*(data.right-data.left);
  line.setAttribute('x1',on);line.setAttribute('x2',on);line.style.display='block';
  tip.replaceChildren(document.createTextNode(data.times[at]));
  for(const one of data.series){const row=document.createElement('div'),key=document.createElement('i');key.className=one.colour;
   row.append(key,one.name+': '+one.values[at]);tip.append(row)}
  tip.style.display='block';const px=on/data.width*box.width;
  tip.style.left=Math.min(Math.max(0,px+12),box.width-tip.offsetWidth)+'px';tip.style.top='30px'});
 svg.addEventListener('mouseleave',()=>{line.style.display='none';tip.style.display='none'})}
"""
