// Package httpd is a small web server that knows nothing of the network under it: give Serve any net.Listener.
//
//	/                static files of Config.Root, with ranges and conditional requests
//	/-/status        a page with the server's own counters and whatever Config.Status answers
//	/-/status.json   the same as one JSON object
//	/-/healthz       200 "ok"
//	/-/echo          the body of a POST comes back byte for byte while it arrives
//	/-/bytes/N       N bytes of a known pattern (FillPattern), with ranges: the far side can check every byte
//
// Everything is bounded: header size and time, body size (Config.MaxBody), and the time of a transfer by its size.
package httpd
