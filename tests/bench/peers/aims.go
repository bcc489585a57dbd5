package main

import (
	"fmt"
	"strings"
)

// aim is a goal for one of our configurations: a median that is at least (of quantities where lower
// is better: at most) factor times the best peer's, or an absolute bound.
type aim struct {
	what    string
	us, key string
	peers   func(*column) bool // nil: bound is absolute
	factor  float64
	bound   float64
}

func aims() []aim {
	kernel := func(c *column) bool { return c.Name == "kernel/tap" }
	link := func(c *column) bool { return c.gvisorLink() && c.Group == groupShared }
	fdbased := func(c *column) bool { return link(c) && strings.HasPrefix(c.Name, "fd") }
	list := clientAims("", "ours/tap", kernel, fdbased, link)
	kernelApart := func(c *column) bool { return c.Name == "kernel/tap-apart" }
	linkApart := func(c *column) bool { return c.gvisorLink() && c.Group == groupApart }
	fdApart := func(c *column) bool { return linkApart(c) && strings.HasPrefix(c.Name, "fd") }
	list = append(list, clientAims("apart: ", "ours/tap-apart", kernelApart, fdApart, linkApart)...)
	list = append(append(list, packetAims()...), xdpAims()...)
	return append(list, []aim{
		{what: "bulk on frames as on a wire, to server: twice gVisor's best", us: "ours/plain",
			key: "up 1", peers: plainLink, factor: 2},
		{what: "bulk on frames as on a wire, from server: twice gVisor's best", us: "ours/plain",
			key: "down 1", peers: plainLink, factor: 2},
		{what: "CPU when idle: under 1 % of a core", us: "ours/tap", key: "idle", bound: 1},
		{what: "in memory, one core, 1 flow: 3.6 GB/s", us: "mem-ours", key: "up 1", bound: 3600},
		{what: "in memory, one core, 16 flows: 2.3 GB/s", us: "mem-ours",
			key: "up 16", bound: 2300},
		{what: "in memory, one core: 48,000 HTTP requests/s", us: "mem-ours",
			key: "mem http", bound: 48000},
	}...)
}

// packetAims are those of packet sockets: to be as good as gVisor's link on the same cable.
func packetAims() (list []aim) {
	for _, a := range []struct{ what, key string }{
		{"HTTP keep-alive", "http"}, {"DNS", "dns"}, {"bulk to server", "up 1"},
		{"bulk to server, 8 flows", "up 8"}, {"bulk from server", "down 1"},
		{"bulk from server, 8 flows", "down 8"},
	} {
		list = append(list, aim{what: "packet sockets: " + a.what + ": gVisor's fdbased",
			us: "packet", key: a.key, peers: (*column).onVeth, factor: 1})
	}
	return list
}

// xdpAims lists those of AF_XDP beside packet sockets, on frames within the MTU: what it is to gain
// where frames are small and come to the server, and what it may lose where they leave; on shared
// processors and apart.
func xdpAims() []aim { return append(xdpAimsOf(""), xdpAimsOf("-apart")...) }

// xdpAimsOf lists those of one way of sharing processors.
func xdpAimsOf(how string) (list []aim) {
	sockets := func(c *column) bool { return c.Name == "packet/plain"+how }
	for _, a := range []struct {
		what, key string
		factor    float64
	}{
		{"CPU per HTTP request", "http cpu", 0.95}, {"CPU per DNS query", "dns cpu", 0.85},
		{"bulk to server", "up 1", 1.2}, {"bulk from server", "down 1", 0.95},
	} {
		for _, us := range []string{"xsk" + how, "xsk-rings" + how} {
			list = append(list, aim{what: fmt.Sprintf("%s: %s: %v of packet sockets'", us, a.what,
				a.factor), us: us, key: a.key, peers: sockets, factor: a.factor})
		}
	}
	return list
}

// clientAims are those with a kernel's client. They apply to both ways of sharing processors.
func clientAims(how, us string, kernel, fdbased, link func(*column) bool) []aim {
	return []aim{
		{what: how + "HTTP keep-alive: twice gVisor's fdbased", us: us, key: "http",
			peers: fdbased, factor: 2},
		{what: how + "HTTP keep-alive: the kernel's", us: us, key: "http",
			peers: kernel, factor: 1},
		{what: how + "CPU per request without NIC: the kernel's", us: us, key: "http own",
			peers: kernel, factor: 1},
		{what: how + "p99 at equal load: the kernel's", us: us, key: "paced p99",
			peers: kernel, factor: 1},
		{what: how + "DNS: the kernel's", us: us, key: "dns", peers: kernel, factor: 1},
		{what: how + "DNS queries lost: none", us: us, key: "dns lost"},
		{what: how + "CPU per packet of an SFU without NIC, in batches: half the kernel's", us: us,
			key: "sfu batched own", peers: kernel, factor: 0.5},
		{what: how + "bulk to server: twice gVisor's best link", us: us,
			key: "up 1", peers: link, factor: 2},
		{what: how + "bulk from server: twice gVisor's best link", us: us,
			key: "down 1", peers: link, factor: 2},
	}
}

// plainLink is true for gVisor on a link with frames within the MTU, none of them merged before.
func plainLink(c *column) bool {
	return c.gvisorLink() && c.Group == groupShared && c.Plumbing == plumbPlain
}

// aimRows reports for each aim whether it was reached.
func (r *results) aimRows() [][]string {
	rows := [][]string{{"aim", "ours", "compared with", "ratio", ""}}
	for _, a := range aims() {
		if row, ok := r.aimRow(a); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *results) aimRow(a aim) (row []string, ok bool) {
	q, us := quantityOf(a.key), r.column(a.us)
	if us == nil {
		return nil, false
	}
	have, ok := us.of(a.key)
	if !ok {
		return nil, false
	}
	ours := strings.TrimSpace(short(have.median) + " " + q.Unit)
	if a.peers == nil {
		return []string{a.what, ours, "-", "-", verdict(have.median, a.bound, q.Less)}, true
	}
	them := r.best(q, a.peers)
	if them == nil {
		return nil, false
	}
	s, ok := ratio(us, them, a.key)
	return []string{a.what, ours, named(them, q), fmt.Sprintf("%.2f", s.median),
		verdict(s.median, a.factor, q.Less)}, ok
}

func verdict(have, want float64, less bool) string {
	if less && have <= want || !less && have >= want {
		return "reached"
	}
	return "missed"
}
