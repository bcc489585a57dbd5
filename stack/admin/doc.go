// Package admin shows a running stack to tools and people over HTTP:
//
//	go http.Serve(listener, admin.Handler(admin.Config{Stack: st}))
//
// The listener is the host's: a unix socket that only the user may open, or an address of the
// machine. What is served discloses addresses and ports of peers, so it does not belong on the
// slice. All of it is GET, and JSON unless said otherwise:
//
//	/          the status page, HTML
//	/status    Status: what the page shows
//	/events    the same each second, as server-sent events, to 32 viewers at most
//	/info      Info: the process, the stack's name and addresses, the device
//	/facts     Facts: what package diagnose looks at besides counters, sockets and health
//	/sockets   []stack.Socket
//	/stats     Counters: every counter and gauge by name
//	/errors    []Problem: every counter of drops and errors that is not 0
//	/rules     []stack.Rule: what the device leads to the stack
//	/filter    stack.FilterStatus: rules of the packet filter, with counts
//	/filter/load
//	           POST: puts the list in the body in the place of the one before, whole
//	/filter/prefix?prefix=192.0.2.0/24&verdict=deny&for=10m
//	           POST: verdict is deny, allow or forget; for may be left out
//	/health    []Reporter: in the words of devlink-health(8)
//	/health/dump?reporter=tx
//	           []Dump: the descriptors and completions kept at the last errors; &now=1, or if
//	           none are kept: those that the rings hold now
//	/health/recover?reporter=device
//	           POST: looks for a device that is away now; []Reporter
//	/capture   a pcapng file, without an end: frames as they come. Parameters: filter, snaplen
//	           (bytes), count (frames), direction (in, out, inout), queue (may be repeated), wire,
//	           time=nic, buffer (bytes); see capture.Options. With POST it ends when the body of
//	           the request does, and the file then has the counts at its end
//	/metrics   Prometheus text, see package stack/metrics
//	/debug/profile?seconds=5
//	           a CPU profile for go tool pprof, with the labels device and queue
//	/debug/trace?seconds=5
//	           an execution trace for go tool trace, with the regions poll, deliver, transmit
//	/debug/goroutines
//	           text: the goroutines, with their labels
//	/healthz   text: ok, or 503 and the checks that fail
//	/readyz    text: ok, or 503 while the server should get no requests
//
// A dump tells addresses of memory and keys, and asks the receive workers for a moment; /debug/
// takes time of the server's; /filter tells what gets through; /health/recover and what is below
// /filter change something: [ReadOnly] refuses all of them, for a listener that others reach.
//
// Names of counters are those of the kernel's tools where they have one: rx0_packets is of receive
// queue 0, as ethtool -S prints it; what netstack counts keeps its name (tcp_retransmits). JSON
// names are stable: new ones may come, none changes its meaning.
package admin
