// Package iperf3d answers iperf3 clients: TCP both ways, parallel streams, both directions at once,
// and UDP with loss and jitter. It does not depend on the network under it: give it a net.Listener
// and, for UDP, a net.PacketConn.
//
//	client                                server
//	  │ ── connect, cookie ───────────────▶ │  control connection
//	  │ ◀─ PARAM_EXCHANGE ───────────────── │
//	  │ ── parameters (JSON) ─────────────▶ │  params.go
//	  │ ◀─ CREATE_STREAMS ───────────────── │
//	  │ ── n connections, or datagrams ───▶ │  tcp.go, udp.go
//	  │ ◀─ TEST_START, TEST_RUNNING ─────── │
//	  │ ◀═ data ══════════════════════════▶ │
//	  │ ── TEST_END ──────────────────────▶ │
//	  │ ◀─ EXCHANGE_RESULTS ─────────────── │
//	  │ ── results ── results ────────────▶ │  results.go
//	  │ ◀─ DISPLAY_RESULTS ──────────────── │
//
// It runs one test at a time, as iperf3's own server does: while a test's streams move, other
// clients are told that the server is busy. A client that sends nothing for 2 s, at any step, loses
// its turn to a waiting one; if none waits it has 10 s for each step, 20 s for its streams, and 30
// s more than the time it gave its test. A client that hangs up makes room at once. There is no
// authentication and no encryption. The protocol is that of iperf 3.1 and later, as its sources
// (src/iperf_api.c, iperf_server_api.c, iperf_udp.c) and its traffic show it.
package iperf3d
