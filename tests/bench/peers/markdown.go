package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The short tables, for a page: the most important quantities, for all kinds of peers, including
// those where ours is worse.

// shortKeys are the rows of the table of kernel clients.
var shortKeys = []string{
	"http", "http p50", "http p99", "http p99.9", "http own", "http cpu", "paced p50", "paced p99",
	"paced p99.9", "paced own",
	"conns", "conns own", "dns", "dns lost", "dns own", "dns cpu", "up 1", "up 1 own", "up 1 cpu",
	"up 8", "down 1", "down 1 own", "down 1 cpu", "down 8",
	"udp rx", "udp rx own", "udp tx", "udp tx got", "udp tx own", "ping", "rtt p50", "rtt p99",
	"busy rtt p50", "busy rtt p99", "idle",
	"idle conn", "idle conn of many count", "idle conn of many", "idle conn of many kernel",
}

// shortBulkKeys lists the rows of the tables of bulk: sizes of writes, numbers of flows.
var shortBulkKeys = []string{
	"down 4k", "down 4k own", "down 16k", "down 16k own", "down 64k", "down 64k own", "down 65375",
	"down 65375 own", "down 256k", "down 256k own", "down file", "down file own",
	"up 1", "up 1 own", "up 8", "up 8 own", "up 64", "up 64 own",
	"down 1", "down 1 own", "down 8", "down 8 own", "down 64", "down 64 own",
}

// shortServiceKeys are the rows of the table of whole services.
var shortServiceKeys = []string{
	"tls", "tls p99", "tls own", "tls cpu", "tls up", "tls up cpu", "tls down", "tls down cpu",
	"http2", "http2 p99", "http2 own", "http2 cpu",
	"http3", "http3 p99", "http3 own", "http3 cpu",
	"http3 batched", "http3 batched p99", "http3 batched own", "http3 batched cpu",
	"http3 up", "http3 up cpu", "http3 batched up", "http3 batched up cpu",
	"http3 down", "http3 down cpu", "http3 batched down", "http3 batched down cpu",
	"grpc", "grpc p99", "grpc own", "grpc cpu", "grpc pull", "grpc pull own", "grpc pull cpu",
	"fasthttp", "fasthttp p99", "fasthttp own", "fasthttp cpu",
	"proxy", "proxy p99", "proxy own", "proxy cpu", "many", "many p99", "many own", "many cpu",
	"many udp", "many udp p99", "many udp own", "many udp cpu",
	"sfu", "sfu lost", "sfu own", "sfu cpu",
	"sfu batched", "sfu batched lost", "sfu batched own", "sfu batched cpu",
	"http to", "http from", "tls to", "tls from", "http2 to", "http2 from", "http3 to",
	"http3 from", "grpc to", "grpc from", "proxy to", "proxy from", "many to", "many from",
	"dns to", "dns from",
}

// shortApartKeys are the rows of the table of kernel clients on a processor of their own.
var shortApartKeys = []string{
	"http", "http p50", "http p99", "http own", "http cpu", "conns", "conns own", "dns",
	"dns lost", "dns own", "dns cpu",
	"up 1", "up 1 own", "up 1 cpu", "down 1", "down 1 own", "down 1 cpu", "udp rx", "paced p50",
	"paced p99", "rtt p50", "rtt p99", "http3", "http3 own", "http3 batched", "http3 batched own",
	"http3 down", "http3 down own", "http3 batched down", "http3 batched down own",
}

// shortPacketKeys are the rows of the table of packet sockets.
var shortPacketKeys = []string{
	"http", "http p50", "http p99", "http cpu", "paced p99", "conns", "dns", "dns lost", "dns cpu",
	"up 1", "up 1 cpu", "up 8", "down 1", "down 1 cpu", "down 8", "udp rx", "udp tx got",
	"rtt p50", "rtt p99", "idle", "idle conn",
}

// shortMemoryKeys are the rows of the table of pairs in one process.
var shortMemoryKeys = []string{
	"mem http", "mem http p50", "mem http p99", "mem http own", "mem http cpu", "up 1", "up 1 own",
	"up 1 cpu", "up 16", "up 16 own", "up 16 cpu",
	"udp rx", "udp echo", "rtt p50", "busy rtt p99",
}

// markdown is all short tables.
func (r *results) markdown() string {
	var b strings.Builder
	noise, _ := spreadOf(r.Noise)
	fmt.Fprintf(&b,
		"Measured on %s: %d processors (%s), linux %s, %s, %d rounds, interleaved, in %.0f "+
			"minutes; others kept %.2f processors busy meanwhile. Medians [lowest..highest].\n",
		r.Date.Format("2006-01-02"), r.Machine.CPUs, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go,
		r.Rounds, r.Seconds/60, noise.median)
	fmt.Fprintf(&b, "\nA kernel's client, over a TAP or a veth pair:\n\n")
	write(&b, r.shortRows(shortKeys, "ours/tap", "kernel/tap",
		[]string{"kernel/veth", "kernel/tap"}, []string{"ours/tap", "ours/veth"}))
	fmt.Fprintf(&b, "\nBulk in more ways, beside a kernel whose super-segments pass the cable as "+
		"they are, and one whose frames are within the MTU as on a wire:\n\n")
	write(&b, r.bulkRows("ours/tap", "kernel/tap", "kernel/tap-mtu"))
	fmt.Fprintf(&b, "\nThe same, the server with its NIC or cable on one processor:\n\n")
	write(&b, r.bulkRows("ours/tap-apart", "kernel/tap-apart", "kernel/tap-mtu-apart"))
	fmt.Fprintf(&b, "\nWhole services, likewise; packets are those of the client's interface, "+
		"where a super-segment of a veth pair is one:\n\n")
	write(&b, r.shortRows(shortServiceKeys, "ours/tap", "kernel/tap",
		[]string{"kernel/veth", "kernel/tap"}, []string{"ours/tap", "ours/veth", "packet"}))
	fmt.Fprintf(&b, "\nWithout a NIC of any kind: packet sockets (`--backend packet`) beside "+
		"gVisor's fdbased on the same veth pair:\n\n")
	write(&b, r.packetRows())
	fmt.Fprintf(&b,
		"\nA kernel's client as in the first table, the server with its NIC or cable on one "+
			"processor, the clients on the other:\n\n")
	write(&b, r.shortRows(shortApartKeys, "ours/tap-apart", "kernel/tap-apart",
		[]string{"kernel/tap-apart"}, []string{"ours/tap-apart"}))
	fmt.Fprintf(&b, "\nA kernel's client over a cable that holds frames back for %v and loses "+
		"%v %% of them, in each direction:\n\n", wanDelay, wanLoss*100)
	write(&b, r.wanRows())
	fmt.Fprintf(&b, "\nBoth ends in one process, on one core:\n\n")
	write(&b, r.memoryRows())
	fmt.Fprintf(&b, "\nMore cores, more queues:\n\n")
	write(&b, r.scalingRows())
	fmt.Fprintf(&b, "\nWhat was aimed at:\n\n")
	write(&b, r.aimRows())
	return b.String()
}

// shortRows has a column for each of some peers, the best of gVisor's links and ours, and our ratio
// to one peer and to that best link.
func (r *results) shortRows(keys []string, us, them string, left, right []string) [][]string {
	group := ""
	if c := r.column(us); c != nil {
		group = c.Group
	}
	head := append([]string{""}, left...)
	head = append(append(head, "best of gVisor's links"), right...)
	rows := [][]string{append(head, us+" ÷ "+them, "÷ best")}
	for _, key := range keys {
		q := quantityOf(key)
		best := r.best(q, func(c *column) bool { return c.gvisorLink() && c.Group == group })
		row := []string{strings.TrimSuffix(q.Title+", "+q.Unit, ", ")}
		for _, name := range left {
			row = append(row, shortCell(r.column(name), q))
		}
		row = append(row, named(best, q))
		for _, name := range right {
			row = append(row, shortCell(r.column(name), q))
		}
		rows = append(rows, append(row, r.times(us, r.column(them), q), r.times(us, best, q)))
	}
	return filled(rows)
}

// bulkRows compares bulk transfers with those of two peers.
func (r *results) bulkRows(us, them, mtu string) [][]string {
	rows := [][]string{{"", them, mtu, us, us + " ÷ " + them, "÷ " + mtu}}
	for _, key := range shortBulkKeys {
		q := quantityOf(key)
		rows = append(rows, []string{q.Title + ", " + q.Unit, shortCell(r.column(them), q),
			shortCell(r.column(mtu), q), shortCell(r.column(us), q), r.times(us, r.column(them), q),
			r.times(us, r.column(mtu), q)})
	}
	return filled(rows)
}

// onVeth is true for gVisor's fdbased over a veth pair that carries super-segments, shared with the
// client.
func (c *column) onVeth() bool {
	return c.gvisorLink() && c.Group == groupShared && c.Plumbing == plumbVeth
}

// packetRows compares packet sockets with fdbased and the kernel on the same plumbing.
func (r *results) packetRows() [][]string {
	const us, them = "packet", "kernel/veth"
	rows := [][]string{{"", them, "best of fdbased", us, us + " ÷ " + them, "÷ best"}}
	for _, key := range shortPacketKeys {
		q := quantityOf(key)
		best := r.best(q, (*column).onVeth)
		rows = append(rows, []string{strings.TrimSuffix(q.Title+", "+q.Unit, ", "),
			shortCell(r.column(them), q), named(best, q), shortCell(r.column(us), q),
			r.times(us, r.column(them), q), r.times(us, best, q)})
	}
	return filled(rows)
}

// shortWANKeys are the rows of the table of a long cable.
var shortWANKeys = []string{
	"wan up", "wan down", "wan http", "wan http p50", "wan http p99", "wan http p99.9",
}

func (r *results) wanRows() [][]string {
	names := []string{"kernel/wan", "fd-gso-inline/wan", "ours/wan", "packet/wan"}
	rows := [][]string{append(append([]string{""}, names...), "ours ÷ kernel", "packet ÷ kernel")}
	for _, key := range shortWANKeys {
		q := quantityOf(key)
		row := []string{q.Title + ", " + q.Unit}
		for _, name := range names {
			row = append(row, shortCell(r.column(name), q))
		}
		kernel := r.column("kernel/wan")
		rows = append(rows, append(row, r.times("ours/wan", kernel, q),
			r.times("packet/wan", kernel, q)))
	}
	return filled(rows)
}

// filled removes rows without any measured value.
func filled(rows [][]string) [][]string {
	return slices.DeleteFunc(rows, func(row []string) bool {
		return !slices.ContainsFunc(row[1:], func(c string) bool { return c != "-" })
	})
}

func (r *results) memoryRows() [][]string {
	names := []string{"mem-pipe", "mem-ceiling", "mem-ours"}
	rows := [][]string{append(append([]string{""}, names...), "ours ÷ pipe", "÷ ceiling")}
	for _, key := range shortMemoryKeys {
		q := quantityOf(key)
		row := []string{strings.TrimSuffix(q.Title+", "+q.Unit, ", ")}
		for _, name := range names {
			row = append(row, shortCell(r.column(name), q))
		}
		rows = append(rows, append(row, r.times("mem-ours", r.column("mem-pipe"), q),
			r.times("mem-ours", r.column("mem-ceiling"), q)))
	}
	return filled(rows)
}

// scalingRows compares a configuration with the same one on more cores and with more queues.
func (r *results) scalingRows() [][]string {
	rows := [][]string{{"", "1 core", "2 cores", "÷ 1 core", "2 cores, 4 queues", "÷ 1 queue"}}
	for _, s := range []struct {
		where, one, two, four string
		keys                  []string
	}{
		{"over a TAP", "ours/tap-1core", "ours/tap", "ours/tap-4q",
			[]string{"http", "dns", "up 1", "down 1", "udp rx"}},
		{"in memory", "mem-ours", "mem-ours-2core", "mem-ours-4q",
			[]string{"mem http", "up 1", "up 16", "udp echo"}},
		{"in memory, no link", "mem-ceiling", "mem-ceiling-2core", "",
			[]string{"mem http", "up 1", "up 16", "udp echo"}},
	} {
		for _, key := range s.keys {
			q := quantityOf(key)
			one, two, four := r.column(s.one), r.column(s.two), r.column(s.four)
			rows = append(rows, []string{
				fmt.Sprintf("%s, %s, %s", q.Title, q.Unit, s.where),
				shortCell(one, q), shortCell(two, q), r.times(s.two, one, q),
				shortCell(four, q), r.times(s.four, two, q),
			})
		}
	}
	return filled(rows)
}

// gvisorLink is true for gVisor on a link to the kernel.
func (c *column) gvisorLink() bool {
	return c.Group != groupMemory && !c.Ours && !strings.HasPrefix(c.Name, stackKernel)
}

// best is the column with the best median; nil if none has the quantity.
func (r *results) best(q quantity, among func(*column) bool) (best *column) {
	top := 0.0
	for _, c := range r.Peers {
		s, ok := c.of(q.Key)
		if !ok || !among(c) {
			continue
		}
		if best == nil || (s.median < top) == q.Less && s.median != top {
			best, top = c, s.median
		}
	}
	return best
}

// times is the ratio of a column of ours to another, as a cell.
func (r *results) times(us string, them *column, q quantity) string {
	a := r.column(us)
	if a == nil || them == nil {
		return "-"
	}
	s, ok := ratio(a, them, q.Key)
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(s.median, 'f', 2, 64)
}

func quantityOf(key string) quantity {
	for _, q := range catalogue() {
		if q.Key == key {
			return q
		}
	}
	panic("no quantity " + key)
}

func named(c *column, q quantity) string {
	if c == nil {
		return "-"
	}
	return shortCell(c, q) + " " + c.Name
}

func shortCell(c *column, q quantity) string {
	if c == nil {
		return "-"
	}
	s, ok := c.of(q.Key)
	switch {
	case !ok:
		return "-"
	case s.low == s.high:
		return short(s.median)
	}
	return fmt.Sprintf("%s [%s..%s]", short(s.median), short(s.low), short(s.high))
}

// short formats a number with three digits.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 999500:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + "M"
	case a >= 9995:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + "k"
	case a >= 99.95 || v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
