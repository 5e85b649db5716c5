"""Pages for people: queues, jobs, dead letters and workers, in a browser.

    /                    the page: HTML, a style and ES modules of our own (`static/`), no third party's code
    /docs                the API reference: Swagger UI (`viewer/`) on the server's OpenAPI
    /assets/NAME         their files
    /session             signing in (POST a token) and out (DELETE): the token becomes a cookie that scripts cannot read
    /ui/VIEW             the contents of a page, as JSON (`views`); with Accept: text/event-stream, again on each change

Actions (pause, replay, purge, cancel) go to the operations below `/v1`, which check the caller's scope. `history` keeps
the metrics of the last hour.
"""
