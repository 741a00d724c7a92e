// The address is relative to the page, as a proxy may serve both below a prefix.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  // By default, a server of the makers checks the document.
  validatorUrl: null,
});
