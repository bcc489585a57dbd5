// Package httpd is a small web server that does not depend on the network under it: give Serve any
// net.Listener.
//
//	/                static files of Config.Root, with ranges and conditional requests
//	/-/healthz       200 "ok" or 503 "failing", and what was checked
//
// With Config.DebugEndpoints, which is for tests and demonstrations:
//
//	/                listings of directories without an index.html
//	/-/status        a page with the server's own counters and whatever Config.Status answers
//	/-/status.json   the same as one JSON object
//	/-/echo          the body of a POST comes back byte for byte while it arrives
//	/-/bytes/N       N bytes of a known pattern (FillPattern), which a client can check; ranges
//
// All resources are limited: header size and time, sizes of /-/echo and /-/bytes (Config.MaxBody),
// connections (Config.MaxConns), and how slow a peer may be (Config.MinRate). A connection that the
// server ends does not keep its send buffer for long: a peer that does not read the data in it gets
// a reset. That needs the methods CloseWrite and SetLinger of net.TCPConn, which the listener's
// connections may lack.
package httpd
