// Package iperf3d answers iperf3 clients: TCP both ways, parallel streams, both directions at once, and UDP with loss and
// jitter. It knows nothing of the network under it: give it a net.Listener and, for UDP, a net.PacketConn.
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
// One test at a time, as iperf3's own server: others are told that the server is busy. There is no authentication and no
// encryption. The protocol is that of iperf 3.1 and later, as its sources (src/iperf_api.c, iperf_server_api.c,
// iperf_udp.c) and its traffic show it.
package iperf3d
