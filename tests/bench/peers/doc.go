// Command perf compares the stack with the alternatives that users have, on one machine, in one
// interleaved run, with the same servers: "make bench-peers".
//
// Every configuration gets network namespaces of its own (cmd/rdma-netstack/lab). A server process
// has the HTTP, DNS, TCP and UDP services on one stack; its client is the kernel of another
// namespace, driven by wrk, dnsperf, ping and a load process. Pairs in memory have both ends in one
// process. Traffic stays inside these namespaces.
//
//	main.go run.go      flags; rounds, interleaved by load, so that noise is equal for all
//	peers.go arena.go   the configurations, and the namespaces and cables of one
//	child.go service.go the other side of the pipe: a process with a stack, services and loads
//	host_*.go           the stacks under them: kernel, gVisor on its links, ours
//	service*.go         what is served: a file each for HTTP/3, gRPC, SFU ...; tls.go: TLS
//	load_*.go           what is measured; frames.go: packets of the client's interface
//	wan.go bench_wan.go peers behind a cable that delays and loses frames
//	apart.go            peers whose server and clients have a processor each
//	usage.go noise.go   CPU time, the software NIC's share of it, and CPU time of other programs
//	table.go svg.go     medians, spreads, ratios
//	markdown.go aims.go the short tables and the aims; page.go writes docs/perf-log/peers.md
//
// This is a module of its own, because loading an XDP program, reading a CPU profile and some of
// the services need libraries that nothing else here uses.
package main
