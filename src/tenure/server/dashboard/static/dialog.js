// A confirmation dialog for actions that cannot be undone.

import { h, show } from "./dom.js";

export function confirm(title, text, yes, then) {
  const dialog = document.getElementById("dialog");
  const close = () => dialog.close();
  show(dialog, h("h2", { id: "dialog-title" }, title), h("p", null, text),
    h("div", { class: "row" }, h("button", { onclick: close }, "No"), h("button", { class: "danger main", onclick: () => { close(); then(); } }, yes)));
  dialog.showModal();
}
