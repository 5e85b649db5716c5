// The API reference: Swagger UI on this server's own OpenAPI.
//
// Requests go to this server only. A visitor who is signed in to the dashboard is signed in here, by the same cookie; a
// token typed here stays in this page's memory.

const dark = matchMedia("(prefers-color-scheme: dark)");
const colours = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", colours);
colours();

function ownRequest(request) {
  if (new URL(request.url, location.href).origin === location.origin) request.headers["Tenure-Dashboard"] = "1";
  return request;
}

/** Adds what Swagger UI lacks for screen readers: landmarks, and a heading between the title (h1) and the routes (h3). */
const landmarks = () => {
  const within = (label, ...more) => (Original, { React }) => (props) => React.createElement("section", { "aria-label": label }, React.createElement(Original, props), ...more.map((text) => React.createElement("h2", { key: text }, text)));
  return { wrapComponents: { InfoContainer: within("About", "Routes") } };
};

new MutationObserver(() => {
  for (const table of document.querySelectorAll("table.responses-table[role=region]:not([aria-label])")) table.setAttribute("aria-label", `Responses of ${table.id}`);
}).observe(document.getElementById("reference"), { childList: true, subtree: true });

window.SwaggerUIBundle({
  url: "/schema",
  domNode: document.getElementById("reference"),
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  plugins: [landmarks],
  persistAuthorization: false,
  queryConfigEnabled: false,
  requestInterceptor: ownRequest,
  syntaxHighlight: false, // its colours are too faint
  validatorUrl: null,
});
