package metrics

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
)

// exporter answers scrapes of one stack.
type exporter struct {
	stack   *stack.Stack
	program func() []ProgramSockets
	rtt     rtt
}

// ProgramSockets counts sockets of a program whose sockets are the slice's or the kernel's, see
// package unmodified.
type ProgramSockets struct {
	Kind  string // such as "tcp_listener"
	Way   string // "slice" or "kernel"
	Count uint64
}

// Handler answers a scrape. It may be used from any goroutine, and after the stack's end.
func Handler(st *stack.Stack) http.Handler { return ProgramHandler(st, nil) }

// ProgramHandler returns Handler with the sockets of a program; nil: there are none to tell.
func ProgramHandler(st *stack.Stack, program func() []ProgramSockets) http.Handler {
	e := &exporter{stack: st, program: program}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		e.write(w) // who asked is gone if it fails
	})
}

// write writes the present values. Its errors are those of w.
func (e *exporter) write(w io.Writer) error {
	var p page
	st := e.stack
	p.writeVersions(debug.ReadBuildInfo())
	r, s, health := readRings(st), st.Stats(), st.Health()
	failover, switches := st.FailoverStats(), st.BackendSwitches()
	host, shared := st.HostStats()
	p.writeRings(r)
	p.writeDropped(st, s, r)
	p.writeLink(st, s)
	p.writeBackend(BackendOf(st), failover, switches)
	p.writeHealth(health)
	p.filter(st.Filter().Status())
	p.writeNetwork(st, s)
	if shared {
		p.writeHost(host)
	}
	sockets := st.Sockets()
	p.writeSockets(sockets)
	if e.program != nil {
		p.programSockets(e.program())
	}
	e.rtt.sampleRTTs(sockets, time.Now())
	e.rtt.write(&p)
	p.writeEvents(st)
	_, err := w.Write(p.Bytes())
	return err
}

// ContentType names that of what [Handler] answers.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// prefix of all names.
const prefix = "rdma_netstack_"

// The kinds of families.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// page holds the text that is written. Its methods are called by one goroutine.
type page struct{ bytes.Buffer }

// sample holds one line: what follows the name of its family, labels by name and value in turn, and
// the value.
type sample struct {
	suffix string
	labels []string
	value  string
}

// family writes a family, unless it has no samples.
func (p *page) family(kind, name, help string, samples ...sample) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(p, "# HELP %s%s %s\n# TYPE %[1]s%[2]s %[4]s\n", prefix, name, help, kind)
	for _, s := range samples {
		fmt.Fprintf(p, "%s%s%s", prefix, name, s.suffix)
		for i := 0; i < len(s.labels); i += 2 {
			fmt.Fprintf(p, "%c%s=\"%s\"", "{,"[min(i, 1)], s.labels[i], escapeLabel(s.labels[i+1]))
		}
		if len(s.labels) > 0 {
			p.WriteByte('}')
		}
		fmt.Fprintf(p, " %s\n", s.value)
	}
}

// escapeLabel returns the value of a label as the format wants it.
func escapeLabel(value string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value)
}

// of returns a sample of a whole number with labels by name and value.
func of(n uint64, labels ...string) sample {
	return sample{labels: labels, value: strconv.FormatUint(n, 10)}
}

// fraction returns a sample of any other number.
func fraction(f float64, labels ...string) sample {
	return sample{labels: labels, value: strconv.FormatFloat(f, 'g', -1, 64)}
}

// truth returns 1 or 0.
func truth(yes bool, labels ...string) sample {
	if yes {
		return of(1, labels...)
	}
	return of(0, labels...)
}

// programSockets writes which way the sockets of a program went.
func (p *page) programSockets(all []ProgramSockets) {
	var samples []sample
	for _, s := range all {
		samples = append(samples, of(s.Count, "kind", s.Kind, "way", s.Way))
	}
	p.family(counter, "program_sockets_total", "Sockets that an unmodified program made, by who "+
		"serves them.", samples...)
}

// own is the module's name, as the build information has it.
const own = "github.com/rdma-netstack/rdma-netstack"

// writeVersions writes which build this is.
func (p *page) writeVersions(info *debug.BuildInfo, ok bool) {
	if !ok {
		return
	}
	version, gvisor := "", ""
	if info.Main.Path == own {
		version = info.Main.Version
	}
	for _, m := range info.Deps {
		switch m.Path {
		case own:
			version = m.Version
		case "gvisor.dev/gvisor":
			gvisor = m.Version
		}
	}
	p.family(gauge, "build_info", "1, with the versions in labels.",
		of(1, "version", version, "gvisor", gvisor, "go", info.GoVersion))
}

// writeHealth writes what the health reporters say.
func (p *page) writeHealth(all []stack.Health) {
	var now, errors, recovers []sample
	for _, h := range all {
		now = append(now, truth(h.State == stack.InError, "reporter", h.Reporter))
		errors = append(errors, of(h.Error, "reporter", h.Reporter))
		recovers = append(recovers, of(h.Recover, "reporter", h.Reporter))
	}
	p.family(gauge, "health_in_error", "1 while what a health reporter is about is in error.",
		now...)
	p.family(counter, "health_errors_total", "Times that it went into error.", errors...)
	p.family(counter, "health_recoveries_total", "Times that it came out of error.", recovers...)
}

// writeHost writes what a stack on the host's own addresses shares with Linux.
func (p *page) writeHost(h stack.HostStats) {
	p.family(counter, "twin_accepts_total",
		"Connections that came by Linux and were accepted from a kernel socket.", of(h.Accepted))
	p.family(counter, "twin_dials_total",
		"Connections that were dialled by a kernel socket.", of(h.Dialled))
	p.family(counter, "twin_datagrams_total", "Datagrams by kernel sockets.",
		of(h.Received, "direction", "rx"), of(h.Sent, "direction", "tx"))
	p.family(counter, "host_fragments_dropped_total",
		"Fragments that were kept in vain: the rest of their datagram did not come.",
		of(h.FragmentsDropped))
}

// writeEvents writes every counter of netstack and the link, by its name in rdma-netstack status
// stats.
func (p *page) writeEvents(st *stack.Stack) {
	var all []sample
	for name, n := range st.Counters() {
		if strings.HasPrefix(name, "Failover.") {
			continue // has families of its own, in seconds
		}
		parts := strings.Split(name, ".")
		for i, part := range parts {
			parts[i] = fields.Snake(part)
		}
		all = append(all, of(n, "name", strings.Join(parts, "_")))
	}
	p.family(counter, "events_total",
		"Every counter of the stack, by its name in rdma-netstack status stats.", all...)
}

// rings holds the queues that carry frames: of a device, or of packet sockets.
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

// rxQueue holds what rings and packet sockets count alike.
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

// writeLink writes what the link endpoint counts.
func (p *page) writeLink(st *stack.Stack, s stack.Stats) {
	l := st.LinkStats()
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	p.family(gauge, "link_up", "1 while the port has a link.", truth(s.LinkUp))
	count("link_changes_total", "Times that the port's link changed.", s.LinkChanges)
	p.family(gauge, "mtu_bytes", "The largest IP packet that is sent.", of(uint64(st.MTU())))
	p.family(gauge, "netdev_mtu_bytes",
		"The MTU of the rings' netdev; rings may take less. 0 without rings.",
		of(uint64(st.NetdevMTU())))
	count("mtu_changes_total", "Times that the MTU of the uplink changed.",
		s.MTUChanges)
	count("rx_spread_refused_total",
		"Times that a device did not spread flows over another number of queues.", l.SpreadRefused)
	p.family(counter, "stack_packets_total", "Packets exchanged with netstack.",
		of(s.RxPackets, "direction", "rx"), of(s.TxPackets, "direction", "tx"))
	p.family(counter, "stack_bytes_total", "Their bytes.",
		of(s.RxBytes, "direction", "rx"), of(s.TxBytes, "direction", "tx"))
	count("rx_merged_segments_total", "Received frames that went into a packet with others.",
		l.RxMerged)
	count("rx_superseded_acks_total",
		"Received pure ACKs left out, as a later one of the same batch says all that they say.",
		l.RxSupersededACKs)
	p.family(counter, "tcp_gap_acks_total",
		"Received ACKs of a gap too young to be a loss, or faster than TCP takes them, by what "+
			"became of them.",
		of(l.RxACKsLate, "outcome", "late"), of(l.RxACKsKept, "outcome", "kept"))
	count("checksum_software_total", "Received frames whose checksum was verified in software.",
		l.RxVerified)
	p.family(gauge, "rx_waiting_bytes", "Received segments without data that wait in the stack.",
		of(l.RxWaiting))
	count("tx_segmented_packets_total", "Sent packets that were left to the NIC to segment.",
		l.TxLSO)
	count("tx_segmented_datagrams_total",
		"Of these, packets of datagrams of one size (UDP_SEGMENT).", l.TxUSO)
	count("tx_waits_total", "Waits of a sender for room in a send queue.", l.TxWaits)
	p.family(gauge, "tx_backlog_segments", "Segments that wait for room in a send queue.",
		of(l.TxBacklog))
	p.family(gauge, "tx_backlog_max_segments", "The most that have waited for one queue.",
		of(l.TxBacklogMax))
	rules := map[string]uint64{}
	kinds := []string{}
	for _, r := range st.Rules() {
		kind := r.To
		if r.Program != 0 {
			kind = "AF_XDP" // whichever of the queues have a socket
		}
		if rules[kind]++; rules[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	var byKind []sample
	for _, kind := range kinds {
		byKind = append(byKind, of(rules[kind], "kind", kind))
	}
	p.family(gauge, "rules", "Rules of the device, or the XDP program, by where they lead frames.",
		byKind...)
}

// writeDropped writes what was dropped, and why: by rings or packet sockets, and above them.
func (p *page) writeDropped(st *stack.Stack, s stack.Stats, r rings) {
	l := st.LinkStats()
	var ring rxQueue
	for _, q := range r.rx {
		ring.tooLong += q.tooLong
		ring.failed += q.failed
		ring.malformed += q.malformed
	}
	why := []sample{of(l.RxOutOfBuffer, "reason", "out_of_buffer"),
		of(ring.tooLong, "reason", "too_long"), of(ring.failed, "reason", "completion_error"),
		of(ring.malformed, "reason", "malformed"), of(s.RxUnknown, "reason", "unknown_protocol")}
	for reason, n := range l.RxDrops() {
		why = append(why, of(n, "reason", reason))
	}
	p.family(counter, "rx_dropped_total", "Received frames that were dropped, by reason.", why...)
	var refused, lost uint64
	for _, q := range r.tx {
		refused += q.refused
		lost += q.lost
	}
	p.family(counter, "tx_dropped_total", "Packets that were not sent, by reason.",
		of(refused, "reason", "refused"), of(lost, "reason", "lost_in_reset"),
		of(l.TxDropped, "reason", "no_room"), of(l.TxErrors, "reason", "error"),
		of(l.TxFiltered, "reason", "filtered"),
		of(l.TxBacklogDropped, "reason", "backlog"), of(l.None.TxFrames, "reason", "no_backend"))
}

// backends lists the words for what an uplink is; link: one that stack.New was given.
var backends = []string{"rings", "packet", "xdp", "none", "link"}

// writeBackend writes what the uplink is now, and what became of the device.
func (p *page) writeBackend(now string, f stack.FailoverStats, switches []stack.BackendSwitch) {
	var all []sample
	for _, b := range backends {
		all = append(all, truth(b == now, "backend", b))
	}
	p.family(gauge, "backend_info", "1 for what the uplink is now, 0 for the others.", all...)
	p.family(counter, "device_losses_total", "Losses of the device, by who told first.",
		of(f.Failed, "cause", "failed"), of(f.Removed, "cause", "removed"))
	p.writeSwitches(switches)
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	count("device_returns_total", "Times that the device was taken into use again.", f.Returned)
	count("device_refused_total", "Looks for the device that found none that can serve.", f.Refused)
	count("fallback_losses_total", "Ends of the packet sockets that stand in for the device.",
		f.PortLosses)
	count("netdev_moves_total",
		"Times that the device's netdev left for another network namespace.", f.Moved)
	count("outages_total", "Times without any link for longer than --max-outage.", f.Outages)
	p.family(counter, "device_away_seconds_total", "How long the device has been away.",
		fraction(float64(f.AwayMilliseconds)/1000))
	p.family(gauge, "fallback_last_seconds",
		"How long after the last loss of the device was known packet sockets sent frames.",
		fraction(float64(f.LastFallbackMicroseconds)/1e6))
	p.family(gauge, "device_open_last_seconds",
		"How long the device took to open at its last return.",
		fraction(float64(f.LastOpenMilliseconds)/1000))
	p.family(counter, "dark_seconds_total", "How long there was no link of any kind.",
		fraction(float64(f.DarkMilliseconds)/1000))
}

// writeSwitches writes how often the uplink has changed.
func (p *page) writeSwitches(all []stack.BackendSwitch) {
	var samples []sample
	for _, b := range all {
		samples = append(samples, of(b.Count, "from", b.From, "to", b.To, "cause", b.Cause))
	}
	p.family(counter, "backend_switches_total", "Changes of the uplink.", samples...)
}

// BackendOf says what the uplink is: rings, packet, xdp, none, or a link that stack.New was
// given.
func BackendOf(st *stack.Stack) string {
	link, port := st.LinkStatus(), st.PacketPort()
	switch {
	case port != nil && port.Stats().XDP != nil:
		return "xdp"
	case !link.Since.IsZero():
		return link.Backend.String()
	case port != nil:
		return "packet"
	case st.Device() != nil:
		return "rings"
	}
	return "link"
}

// maxRules bounds the rules of a chain that have samples of their own: labels are bounded whatever
// a list has.
const maxRules = 64

// filterRules writes what the rules of the packet filter have decided.
func (p *page) filterRules(s stack.FilterStatus) {
	var rules []sample
	for _, c := range s.Chains {
		rest := uint64(0)
		for i, r := range c.Rules {
			if i >= maxRules {
				rest += r.Packets
				continue
			}
			rules = append(rules, of(r.Packets, "chain", c.Name, "rule",
				strconv.Itoa(r.Number), "verdict", verdictOf(r.Drops)))
		}
		if len(c.Rules) > maxRules {
			rules = append(rules, of(rest, "chain", c.Name, "rule", "others", "verdict", ""))
		}
		rules = append(rules, of(c.Packets, "chain", c.Name, "rule", "policy", "verdict",
			c.Policy))
	}
	p.family(counter, "filter_packets_total",
		"Packets that a rule of the filter has decided, since its list was loaded.", rules...)
}

// filter writes what the packet filter has decided.
func (p *page) filter(s stack.FilterStatus) {
	p.filterRules(s)
	count, packets, automatic := map[string]uint64{}, map[string]uint64{}, uint64(0)
	for _, e := range s.Entries {
		count[e.Verdict]++
		packets[e.Verdict] += e.Packets
		if e.Automatic {
			automatic += uint64(max(e.Sources, 1))
		}
	}
	p.family(gauge, "filter_prefixes", "Prefixes that are denied or allowed ahead of the list.",
		of(count["deny"], "verdict", "deny"), of(count["allow"], "verdict", "allow"))
	p.family(gauge, "filter_prefix_packets", "Packets from these prefixes.",
		of(packets["deny"], "verdict", "deny"), of(packets["allow"], "verdict", "allow"))
	p.family(gauge, "filter_flows",
		"Flows begun by this host whose answers the list would drop.", of(uint64(s.Flows)))
	p.family(counter, "filter_loads_total", "Times that a list was loaded.", of(s.Loads))
	p.family(gauge, "filter_sources", "Sources that limits by source remember.",
		of(uint64(s.Sources)))
	p.family(counter, "filter_sources_evicted_total", "Sources forgotten for want of room while "+
		"they had used some of their limit, since the list was loaded.", of(s.Evicted))
	p.family(gauge, "filter_denied_sources", "Sources that are denied for a flood.", of(automatic))
	p.family(counter, "filter_denials_total", "Sources that were denied for a flood.",
		of(s.Denials))
	p.family(counter, "filter_denials_joined_total", "Prefixes that were denied in place of many "+
		"of their sources.", of(s.Joined))
	p.family(gauge, "filter_offloaded_rules",
		"Rules that drop ahead of the filter, in the NIC, in the XDP program or in packet sockets.",
		of(uint64(s.Offloaded)))
	p.family(gauge, "filter_offload_waiting", "Rules that found no room there: the filter drops "+
		"their packets.", of(uint64(s.Waiting)))
	p.family(counter, "filter_offload_dropped_total", "Packets that the NIC or the XDP program "+
		"has dropped by these rules; packet sockets do not count.", of(s.OffloadDropped))
	p.family(counter, "filter_offload_refused_total", "Rules that a device, the XDP program or "+
		"packet sockets refused.", of(s.OffloadRefused))
	p.family(counter, "filter_denials_refused_total",
		"Sources that kept up a flood and were not denied.",
		of(s.Spared, "reason", "spared"), of(s.Full, "reason", "full"))
}

func verdictOf(drops bool) string {
	if drops {
		return "drop"
	}
	return "accept"
}

// writeNetwork writes what IP, TCP and UDP count.
func (p *page) writeNetwork(st *stack.Stack, s stack.Stats) {
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	count("ip_delivered_packets_total", "IP packets delivered to TCP, UDP and others.",
		s.IPDelivered)
	count("ip_sent_packets_total", "IP packets sent.", s.IPSent)
	p.family(counter, "ip_received_errors_total", "Received IP packets that were dropped.",
		of(s.IPMalformed, "reason", "malformed"),
		of(s.IPInvalidDestination, "reason", "invalid_destination"),
		of(s.GroupFrameDrops, "reason", "group_frame"))
	count("address_conflicts_total",
		"Packets by which another host claims an address of ours.", s.AddressConflicts)
	count("hardware_address_conflicts_total", "Packets of another host with our MAC.",
		s.HardwareAddrConflicts)
	count("hardware_address_changes_total", "Changes of the netdev's MAC that were followed.",
		s.HardwareAddrChanges)
	count("neighbour_moves_total", "Changes of a neighbour's hardware address.", s.NeighbourMoves)
	p.family(counter, "neighbour_queue_drops_total",
		"Packets dropped that waited for a neighbour's hardware address.",
		of(s.NeighbourDrops, "reason", "one_neighbour"),
		of(s.NeighbourOverflows, "reason", "all_neighbours"))
	count("dhcp_refused_total", "Answers of DHCP servers that are no lease.", s.DHCPRefused)

	count("tcp_accepted_total", "Handshakes completed by listeners.", s.TCPAccepted)
	count("tcp_dialed_total", "Handshakes begun by dials.", s.TCPDialed)
	count("tcp_failed_dials_total", "Dials that ended in an error.", s.TCPFailedDials)
	p.family(gauge, "tcp_paced_connections", "Connections that have a rate.", of(s.TCPPaced))
	p.family(gauge, "tcp_window_paced_connections", "Connections that are kept to the rate of "+
		"their window since they have lost segments.", of(s.TCPWindowPaced))
	count("tcp_pacing_waits_total", "Waits of writes for the rate of their connection.",
		s.TCPPacingWaits)
	count("tcp_pacing_stalls_total", "Waits of writes of connections with a rate whose windows "+
		"allow less.", s.TCPPacingStalls)
	count("tcp_retransmitted_segments_total", "TCP segments sent again, by the link too.",
		s.TCPRetransmits)
	counters := map[string]uint64{}
	for name, n := range st.Counters() {
		counters[name] = n
	}
	count("tcp_sent_segments_total", "TCP segments sent.", counters["TCP.SegmentsSent"])
	count("tcp_received_segments_total", "Valid TCP segments received.",
		counters["TCP.ValidSegmentsReceived"])
	count("tcp_timeouts_total", "Retransmission timeouts.", s.TCPTimeouts)
	p.family(counter, "tcp_resets_total", "TCP resets.",
		of(s.TCPResetsReceived, "direction", "rx"), of(s.TCPResetsSent, "direction", "tx"))
	count("listen_overflows_total", "SYNs and ACKs dropped as a listener's backlog was full.",
		s.TCPListenDrops)
	m := st.MemoryStats()
	p.family(gauge, "tcp_memory_bytes", "Bytes in TCP connections, not read or not acknowledged.",
		of(m.Used))
	p.family(gauge, "tcp_memory_limit_bytes", "The most that they may hold.", of(m.Limit))
	count("tcp_memory_pressures_total", "Times that they held two thirds of it.", m.Pressures)
	count("tcp_memory_overflows_total", "Times that they held all of it.", m.Overflows)
	p.family(gauge, "tcp_time_wait_limit", "The most connections in TIME-WAIT.", of(m.TimeWaitMax))
	count("tcp_time_wait_ended_total",
		"Connections that did not stay in TIME-WAIT as there were too many.", m.TimeWaitEnded)
	count("udp_received_datagrams_total", "UDP datagrams received.", s.UDPReceived)
	count("udp_sent_datagrams_total", "UDP datagrams sent.", s.UDPSent)
	count("udp_receive_overflows_total", "UDP datagrams dropped as nobody read them in time.",
		s.UDPReceiveBufferErr)
	count("udp_stamps_lost_total", "Transmit time stamps dropped as nobody read them in time.",
		s.UDPStampsLost)
	p.family(gauge, "udp_paced_sockets", "UDP sockets that have a rate.", of(s.UDPPaced))
	count("udp_pacing_waits_total", "Writes that have waited for the rate of their UDP socket.",
		s.UDPPacingWaits)
	count("udp_unknown_port_total", "UDP datagrams to ports without a socket.", s.UDPUnknownPort)
	p.family(counter, "checksum_errors_total", "Received packets with a wrong checksum.",
		of(s.TCPChecksumErrors, "protocol", "tcp"), of(s.UDPChecksumErrors, "protocol", "udp"))

	a := st.ACKStats()
	count("tcp_acks_held_total", "TCP acknowledgements not sent at once.", a.Held)
	count("tcp_acks_saved_total", "Of these, never sent, as a later packet said the same.", a.Saved)
}

// states of TCP connections, in the words of ss.
var states = []string{"SYN-SENT", "SYN-RECV", "ESTAB", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT",
	"LAST-ACK", "CLOSING", "TIME-WAIT"}

// writeSockets writes how many sockets there are, and not whose.
func (p *page) writeSockets(all []stack.Socket) {
	tcp, listeners, udp := map[string]uint64{}, uint64(0), uint64(0)
	var waiting int
	for _, s := range all {
		switch {
		case s.Network == "udp":
			udp++
		case s.State == "LISTEN":
			listeners++
			waiting += s.RecvQ
		default:
			tcp[s.State]++
		}
	}
	var byState []sample
	for _, state := range states {
		byState = append(byState, of(tcp[state], "state", state))
	}
	p.family(gauge, "tcp_connections", "TCP connections by state.", byState...)
	p.family(gauge, "tcp_listeners", "Listening TCP sockets.", of(listeners))
	p.family(gauge, "tcp_unaccepted_connections", "Connections that wait for Accept.",
		of(uint64(waiting)))
	p.family(gauge, "udp_sockets", "UDP sockets.", of(udp))
}
