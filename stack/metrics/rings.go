package metrics

import (
	"strconv"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// rings are the queues that carry frames: of a device, or of packet sockets.
type rings struct {
	device      string
	info        []string // labels of device_info
	rx          []rxQueue
	tx          []txQueue
	active      int    // receive queues with flows
	spreads     uint64 // changes of these
	registered  int    // bytes; 0: no device
	xdp         *packet.XDPStats
	outOfBuffer uint64 // of the port
}

// rxQueue has what rings and packet sockets count alike.
type rxQueue struct {
	packets, bytes, polls, hits, wakeups, stalls, resets uint64
	tooLong, failed, malformed                           uint64
	asleep                                               float64 // seconds
	left                                                 float64 // of the ring, 0 to 1
}

type txQueue struct {
	packets, bytes, doorbells, stalls, resets, refused, lost uint64
	inPlace, held                                            uint64
	used                                                     float64 // of the ring, 0 to 1
}

// readRings reads what a stack is on; the zero value if it is on neither.
func readRings(st *stack.Stack) rings {
	var of []rings
	for _, d := range st.Devices() {
		r := ofDevice(d.Name(), d.Stats())
		r.registered = d.PinnedBytes()
		r.info = []string{"device", d.Name(), "netdev", d.Netdev(), "fw", d.Caps().Firmware}
		for i := range r.rx {
			r.rx[i].left = float64(d.Rx(i).Left()) / float64(d.Rx(i).Size())
		}
		for i := range r.tx {
			r.tx[i].used = ringSlotsUsed(d.Tx(i))
		}
		of = append(of, r)
	}
	if len(of) > 0 {
		return joinRings(of)
	}
	if p := st.PacketPort(); p != nil {
		r := ofPackets(p.Name(), p.Stats())
		r.info = []string{"device", p.Name(), "netdev", p.Name(), "fw", ""}
		return r
	}
	return rings{}
}

// joinRings returns the rings of several devices, with their names in one and the queues numbered
// through.
func joinRings(of []rings) rings {
	all := of[0]
	for _, r := range of[1:] {
		all.device += "," + r.device
		for i := 1; i < len(all.info); i += 2 {
			if all.info[i] != r.info[i] {
				all.info[i] += "," + r.info[i]
			}
		}
		all.rx, all.tx = append(all.rx, r.rx...), append(all.tx, r.tx...)
		all.registered += r.registered
		all.active += r.active
		all.spreads += r.spreads
		all.outOfBuffer += r.outOfBuffer
	}
	return all
}

// ringSlotsUsed returns how much of a send ring is in use. It waits for whoever sends.
func ringSlotsUsed(q *dv.TxQueue) float64 {
	q.Lock()
	defer q.Unlock()
	return 1 - float64(q.Free())/float64(q.Size())
}

func ofDevice(name string, s dv.Stats) rings {
	r := rings{device: name, outOfBuffer: s.OutOfBuffer, active: s.ActiveRxQueues,
		spreads: s.Rebalances}
	for _, q := range s.Rx {
		r.rx = append(r.rx, rxQueue{packets: q.Packets, bytes: q.Bytes, polls: q.Polls,
			hits: q.Hits, wakeups: q.Events, stalls: q.Stalls, resets: q.Resets,
			asleep:  float64(q.AsleepNanos) / 1e9,
			tooLong: q.Drops.TooLong, failed: q.Drops.Error, malformed: q.Drops.Malformed})
	}
	for _, q := range s.Tx {
		r.tx = append(r.tx, txQueue{packets: q.Packets, bytes: q.Bytes, doorbells: q.Doorbells,
			stalls: q.Stalls, resets: q.Resets, refused: q.Drops.Refused, lost: q.Drops.Lost,
			inPlace: q.InPlace, held: q.Held})
	}
	return r
}

func ofPackets(name string, s packet.Stats) rings {
	r := rings{device: name, xdp: s.XDP}
	for _, q := range s.Rx {
		r.rx = append(r.rx, rxQueue{packets: q.Frames, bytes: q.Bytes, polls: q.Calls,
			hits: q.Hits, wakeups: q.Waits, asleep: float64(q.AsleepNanos) / 1e9,
			tooLong: q.TooLong, malformed: q.Malformed, stalls: q.Stalls})
	}
	for _, q := range s.Tx {
		r.tx = append(r.tx, txQueue{packets: q.Frames, bytes: q.Bytes, doorbells: q.Calls,
			stalls: q.Full, refused: q.Dropped})
	}
	return r
}

// writeRings writes what the queues count.
func (p *page) writeRings(r rings) {
	if r.info != nil {
		p.family(gauge, "device_info", "1, with what the uplink is in labels.",
			of(1, r.info...))
	}
	if r.registered > 0 {
		p.family(gauge, "memory_registered_bytes", "Memory that the device may write and read.",
			of(uint64(r.registered)))
		p.family(gauge, "rx_active_queues", "Receive queues that get flows, see --spread.",
			of(uint64(r.active)))
		p.family(counter, "rx_spread_changes_total",
			"Changes of the receive queues that get flows, or of their shares.", of(r.spreads))
		p.family(counter, "hw_events_total",
			"Counters of the device itself, which have others' frames, too.",
			of(r.outOfBuffer, "name", "out_of_buffer"))
	}
	if x := r.xdp; x != nil {
		p.family(gauge, "xdp_queues",
			"Receive queues of the interface by whether they have an AF_XDP socket of ours; what "+
				"comes by the others arrives by packet sockets.",
			of(uint64(x.Bound), "socket", "yes"),
			of(uint64(max(x.NetdevQueues-x.Bound, 0)), "socket", "no"))
		p.family(counter, "xdp_queue_changes_total",
			"Changes of the number of receive queues of the interface.", of(x.QueueChanges))
	}
	writeQueues(p, r, r.rx, []column[rxQueue]{
		{"rx_packets_total", "Frames received.", func(q rxQueue) uint64 { return q.packets }},
		{"rx_bytes_total", "Their bytes, without FCS.", func(q rxQueue) uint64 { return q.bytes }},
		{"rx_wakeups_total", "Ends of a sleep of the receive worker.",
			func(q rxQueue) uint64 { return q.wakeups }},
		{"rx_stalls_total", "Times that a receive ring had no buffer left.",
			func(q rxQueue) uint64 { return q.stalls }},
	})
	writeQueues(p, r, r.tx, []column[txQueue]{
		{"tx_packets_total", "Packets sent; one to be segmented counts once.",
			func(q txQueue) uint64 { return q.packets }},
		{"tx_bytes_total", "Their bytes.", func(q txQueue) uint64 { return q.bytes }},
		{"tx_in_place_packets_total", "Packets sent without copying, see --zero-copy.",
			func(q txQueue) uint64 { return q.inPlace }},
		{"tx_doorbells_total", "Doorbells, or system calls of packet sockets.",
			func(q txQueue) uint64 { return q.doorbells }},
		{"tx_stalls_total", "Posts that found the send ring full.",
			func(q txQueue) uint64 { return q.stalls }},
	})
	p.ofQueues(r)
	if r.registered > 0 {
		p.sendMemory(r, stack.SendMemory())
	}
}

// sendMemory writes what is known of memory that is sent from without copying.
func (p *page) sendMemory(r rings, m stack.SendMemoryStats) {
	held := uint64(0)
	for _, q := range r.tx {
		held += q.held
	}
	p.family(gauge, "tx_held_packets", "Packets that the NIC reads where netstack keeps them.",
		of(held))
	p.family(gauge, "send_memory_bytes", "Memory for netstack's large buffers, see --zero-copy.",
		of(uint64(m.Bytes)))
	p.family(gauge, "send_memory_used_bytes", "What of it buffers have, in use or spare.",
		of(uint64(m.Used*(m.Bytes/max(m.Pieces, 1)))))
	p.family(counter, "send_memory_missed_total", "Large buffers that found no room in it.",
		of(m.Missed))
}

// column describes a family with a sample for each queue.
type column[Q any] struct {
	name, help string
	of         func(Q) uint64
}

func writeQueues[Q any](p *page, r rings, all []Q, columns []column[Q]) {
	for _, c := range columns {
		var samples []sample
		for i, q := range all {
			samples = append(samples, of(c.of(q), "device", r.device, "queue", strconv.Itoa(i)))
		}
		p.family(counter, c.name, c.help, samples...)
	}
}

// ofQueues writes the families of queues that have another label besides, or are no counts.
func (p *page) ofQueues(r rings) {
	var polls, recoveries, fill, left, asleep []sample
	for i, q := range r.rx {
		n := strconv.Itoa(i)
		polls = append(polls, of(q.hits, "device", r.device, "queue", n, "result", "hit"),
			of(q.polls-min(q.hits, q.polls), "device", r.device, "queue", n, "result", "empty"))
		recoveries = append(recoveries,
			of(q.resets, "device", r.device, "queue", n, "reporter", "rx"))
		asleep = append(asleep, fraction(q.asleep, "device", r.device, "queue", n))
		if r.registered > 0 {
			left = append(left, fraction(q.left, "device", r.device, "queue", n))
		}
	}
	for i, q := range r.tx {
		n := strconv.Itoa(i)
		recoveries = append(recoveries,
			of(q.resets, "device", r.device, "queue", n, "reporter", "tx"))
		if r.registered > 0 {
			fill = append(fill, fraction(q.used, "device", r.device, "queue", n))
		}
	}
	p.family(counter, "rx_polls_total", "Looks at a receive ring, by whether it had frames.",
		polls...)
	p.family(counter, "queue_recoveries_total", "Queues replaced after an error.", recoveries...)
	p.family(counter, "rx_asleep_seconds_total",
		"Time that the receive worker slept; the rest it was busy.", asleep...)
	p.family(gauge, "rx_ring_left_ratio",
		"How much of a receive ring was left to the NIC when it was given more buffers.", left...)
	p.family(gauge, "tx_ring_used_ratio", "How much of a send ring is in use.", fill...)
}
