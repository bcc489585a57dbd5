package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// Snapshot holds what is known of a server at one time: what its admin socket answers, and Host.
type Snapshot struct {
	Stats   admin.Counters
	Health  []admin.Reporter
	Sockets []stack.Socket
	Facts   admin.Facts
	Host    Host
}

// Host tells of the machine that a server runs on. The zero value says that nothing is known.
type Host struct {
	// Card names the RDMA device at the server's interface that can carry a slice; "": none.
	Card string
	// CardCPUs lists the processors of the card's NUMA node, CPUs those that the process may use.
	CardCPUs, CPUs []int
	// PauseReceived and PauseSent count pause frames of the port, of either kind.
	PauseReceived, PauseSent uint64
}

// Take returns a snapshot of a stack of this process, without Host.
func Take(st *stack.Stack) Snapshot {
	return Snapshot{Stats: admin.Count(st), Health: admin.Health(st), Sockets: st.Sockets(),
		Facts: admin.ReadFacts(st)}
}

// observation holds two snapshots of a server, and what is derived from them.
type observation struct {
	before, after Snapshot
	seconds       float64
	queues        []queue // that receive
	conns         []conn
	established   int // connections of after
	packets       uint64
	sentPackets   uint64
	sentBytes     uint64
}

// queue holds what a receive queue did between the snapshots.
type queue struct {
	packets, polls, hits uint64
	stalls, dropped      uint64
	size                 uint64  // of the ring, in frames; 0: there is none
	sleeps               bool    // it is known for how long its worker slept
	asleep               float64 // share of the time
	// work is the share of the time that the worker had frames to work on: it was not asleep, or
	// if it never sleeps, its looks that found some.
	work float64
}

// conn is a connection that both snapshots have.
type conn struct{ before, after stack.Socket }

// sleepless is the share of the time below which a worker that sleeps at all does not stay.
const sleepless = 0.01

func observe(before, after Snapshot) *observation {
	o := &observation{before: before, after: after,
		seconds: max(1e-3, after.Stats.Time.Sub(before.Stats.Time).Seconds())}
	for i := 0; o.hasQueue("rx", i); i++ {
		q := o.readQueue(i)
		o.queues = append(o.queues, q)
		o.packets += q.packets
	}
	for i := 0; o.hasQueue("tx", i); i++ { // there may be more of them
		o.sentPackets += o.ofQueue("tx", i, "packets", "frames")
		o.sentBytes += o.ofQueue("tx", i, "bytes")
	}
	o.matchConns()
	return o
}

func (o *observation) hasQueue(direction string, i int) bool {
	_, ok := o.after.Stats.Counters[fmt.Sprintf("%s%d_bytes", direction, i)]
	return ok
}

func (o *observation) readQueue(i int) queue {
	q := queue{packets: o.ofQueue("rx", i, "packets", "frames"),
		polls: o.ofQueue("rx", i, "polls", "calls"), hits: o.ofQueue("rx", i, "hits"),
		stalls: o.ofQueue("rx", i, "stalls"), dropped: o.ofQueue("rx", i, "dropped"),
		size: o.gauge(fmt.Sprintf("rx%d_ring_size", i))}
	_, q.sleeps = o.after.Stats.Counters[fmt.Sprintf("rx%d_asleep_nanos", i)]
	q.asleep = min(1, float64(o.ofQueue("rx", i, "asleep_nanos"))/1e9/o.seconds)
	q.work = 1 - q.asleep
	if q.asleep < sleepless {
		q.work = share(q.hits, q.polls)
	}
	return q
}

// ofQueue adds up what was added to counters of a queue.
func (o *observation) ofQueue(direction string, i int, names ...string) uint64 {
	full := make([]string, len(names))
	for k, name := range names {
		full[k] = fmt.Sprintf("%s%d_%s", direction, i, name)
	}
	return o.added(full...)
}

// added adds up what was added to counters. Those of a device that came back count from 0.
func (o *observation) added(names ...string) (sum uint64) {
	for _, name := range names {
		now, then := o.after.Stats.Counters[name], o.before.Stats.Counters[name]
		if now < then {
			then = 0
		}
		sum += now - then
	}
	return sum
}

func (o *observation) gauge(name string) uint64 { return o.after.Stats.Gauges[name] }

// matchConns finds the established connections that both snapshots have.
func (o *observation) matchConns() {
	type ends struct{ local, remote netip.AddrPort }
	old := map[ends]stack.Socket{}
	for _, s := range o.before.Sockets {
		if isConn(s) {
			old[ends{s.Local, s.Remote}] = s
		}
	}
	for _, s := range o.after.Sockets {
		if !isConn(s) {
			continue
		}
		o.established++
		if then, ok := old[ends{s.Local, s.Remote}]; ok {
			o.conns = append(o.conns, conn{then, s})
		}
	}
}

func isConn(s stack.Socket) bool {
	return s.Network == "tcp" && s.State == "ESTAB" && s.TCP != nil && !s.Kernel
}

// connsWhere returns how many connections were as fits says in both snapshots, and one of them: the
// one with the most to send, or to read.
func (o *observation) connsWhere(fits func(stack.Socket) bool) (n int, example stack.Socket) {
	for _, c := range o.conns {
		if !fits(c.before) || !fits(c.after) {
			continue
		}
		if n++; n == 1 || cmp.Compare(c.after.SendQ+c.after.RecvQ,
			example.SendQ+example.RecvQ) > 0 {
			example = c.after
		}
	}
	return n, example
}

// inFlight returns the bytes that a connection has sent and not had acknowledged.
func inFlight(s stack.Socket) int { return min(s.TCP.Unacked*s.TCP.MSS, s.SendQ) }

// share returns 0 where nothing happened.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// percent writes a share with two digits.
func percent(s float64) string { return fmt.Sprintf("%.2g %%", 100*s) }
