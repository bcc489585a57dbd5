// Package metrics tells Prometheus what a stack and its device count:
//
//	http.Handle("/metrics", metrics.Handler(st))
//
// It writes the text format itself (Prometheus' exposition formats, text version 0.0.4), without
// client_golang: that brings seven modules, protobuf among them, for what is a list of names and
// numbers here, and a program that has it can serve both. Nothing is kept between two scrapes.
// Names begin with rdma_netstack_; what only ever grows ends in _total. Queues of the device have
// the label queue. Names of Stack.Counters and Stack.Gauges are theirs with underscores:
// rdma_netstack_tcp_retransmits_total, rdma_netstack_link_rx_shed_total, rdma_netstack_ack_waiting.
// The health reporters have the label reporter: rdma_netstack_health_in_error is 0 or 1.
package metrics
