// Package metrics tells Prometheus what a stack and its device count:
//
//	http.Handle("/metrics", metrics.Handler(st))
//
// It writes the text format itself (Prometheus' exposition formats, text version 0.0.4), without
// client_golang: that brings seven modules, protobuf among them, for what is a list of names and
// numbers here, and a program that has it can serve both.
//
// Names begin with rdma_netstack_, units are seconds and bytes, and what only ever grows ends in
// _total. docs/metrics.md lists all. No label names a connection or a peer, so the number of time
// series depends on the number of queues only. Queues have the labels device (the RDMA device, or
// the interface of packet sockets) and queue; a stack uses one port. A device that comes back
// counts from 0 again, as rate() expects.
//
// The one thing kept between scrapes is the histogram of round-trip times: each scrape looks at
// every connection once, but not more often than each second.
package metrics
