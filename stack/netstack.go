package stack

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/internal/netclock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/neighbours"
)

// ports handed out when a caller asks for port 0: Linux's ip_local_port_range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// noisyPrefix begins a line that netstack logs, to standard error, for each repeated SYN: any host
// on the network could fill a server's log.
const noisyPrefix = "tcp.Endpoint.handleListenSegment() failed"

// filteredLog is gVisor's log without lines of noisyPrefix.
type filteredLog struct{ log.Emitter }

// Emit implements log.Emitter.
func (q filteredLog) Emit(depth int, level log.Level, at time.Time, format string, args ...any) {
	if !strings.HasPrefix(format, noisyPrefix) {
		q.Emitter.Emit(depth+1, level, at, format, args...)
	}
}

// installLogFilter takes effect once per process: gVisor has one log per process.
var installLogFilter = sync.OnceFunc(func() { log.SetTarget(filteredLog{log.Log().Emitter}) })

// newNetstack makes a netstack with the protocols a server needs and cfg's options.
// Echo requests are answered by the network protocols themselves.
func newNetstack(cfg Config, addrs *addrconf.Manager, n *neighbours.Table, mtu *linkMTU,
	errs *icmpErrors) (*gstack.Stack, error) {
	installLogFilter()
	dad := addrs.Detection()
	options6 := ipv6Options(cfg, dad, addrs.RouterEvents())
	layer := ipLayer{addrs: addrs, neighbours: n, errors: errs, beside: cfg.Host,
		local: cfg.local}
	if cfg.Dynamic.has(DHCPv4) {
		layer.limit4, layer.limit6 = mtu.limit4, mtu.limit6
	}
	if cfg.Dynamic.has(SLAAC) {
		layer.limit6 = mtu.limit6
	}
	opts := gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{
			layer.wrapARP(arp.NewProtocolWithOptions(arp.Options{DADConfigs: dad})),
			layer.wrapIPv4(ipv4.NewProtocolWithOptions(
				ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: !cfg.Host}})),
			layer.wrapIPv6(ipv6.NewProtocolWithOptions(options6)),
		},
		TransportProtocols: []gstack.TransportProtocolFactory{
			tcp.NewProtocolCUBIC, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
		},
		Clock:       netclock.New(cfg.Clock, probeDelay),
		HandleLocal: true, // we can dial our own address
		NUDDisp:     n,
	}
	if r := random.From(cfg.Random); r.Seeded() {
		opts.RandSource, opts.SecureRNG = netstackRandom{r}, r
	}
	g := gstack.New(opts)
	n.Use(g)
	if err := keepTCPWorkers(g.TransportProtocolInstance(tcp.ProtocolNumber),
		cfg.TCP.Workers); err != nil {
		cfg.Logger.Warn("TCP has a goroutine for each processor, where fewer would do; use the "+
			"version of gVisor in the go.mod of rdma-netstack", "why", err)
	}
	for _, err := range []error{
		tuneTCP(g, cfg),
		tuneUDP(g, cfg.UDPBuffer),
		env.AsError("set ephemeral ports", g.SetPortRange(firstEphemeral, lastEphemeral)),
	} {
		if err != nil {
			g.Destroy()
			return nil, err
		}
	}
	return g, nil
}

// ipv6Options enables router advertisements only if cfg wants them. Addresses are made of a
// hardware address only: a server has no use for temporary ones (RFC 8981), and each costs time per
// packet.
func ipv6Options(cfg Config, dad gstack.DADConfigurations, events ipv6.NDPDispatcher) ipv6.Options {
	o := ipv6.Options{
		DADConfigs: dad,
		MLD:        ipv6.MLDOptions{Enabled: !cfg.Host},
		NDPConfigs: ipv6.NDPConfigurations{HandleRAs: ipv6.HandlingRAsDisabled},
		NDPDisp:    events,
	}
	if cfg.Dynamic.has(SLAAC) {
		o.NDPConfigs = ipv6.DefaultNDPConfigurations()
		o.NDPConfigs.AutoGenTempGlobalAddresses = false
	}
	return o
}

// tuneTCP applies cfg.TCP, whose fields are all set.
func tuneTCP(g *gstack.Stack, cfg Config) error {
	o := cfg.TCP
	recovery := tcpip.TCPRACKLossDetection
	congestion := tcpip.CongestionControlOption(o.CongestionControl)
	send := tcpip.TCPSendBufferSizeRangeOption(o.SendBuffer)
	receive := tcpip.TCPReceiveBufferSizeRangeOption(o.ReceiveBuffer)
	reuse := tcpip.TCPTimeWaitReuseLoopbackOnly
	if cfg.Host { // it has few ports to dial from
		reuse = tcpip.TCPTimeWaitReuseGlobal
	}
	for _, opt := range append([]tcpip.SettableTransportProtocolOption{
		new(tcpip.TCPSACKEnabled(true)), &recovery, &congestion, &send, &receive,
		new(tcpip.TCPMinRTOOption(minRTO)), new(tcpip.TCPMaxRetriesOption(maxRetries)),
		new(tcpip.TCPTimeWaitTimeoutOption(time.Minute)),
		new(tcpip.TCPLingerTimeoutOption(time.Minute)), &reuse,
	}, o.Netstack...) {
		if err := g.SetTransportProtocolOption(header.TCPProtocolNumber, opt); err != nil {
			return env.AsError(fmt.Sprintf("set TCP option %T", opt), err)
		}
	}
	return nil
}

// tuneUDP sets what new UDP endpoints start with; all fields of r are set.
func tuneUDP(g *gstack.Stack, r BufferRange) error {
	if err := g.SetOption(tcpip.SendBufferSizeOption(r)); err != nil {
		return env.AsError("set UDP write buffer", err)
	}
	return env.AsError("set UDP read buffer", g.SetOption(tcpip.ReceiveBufferSizeOption(r)))
}

// netstackRandom has netstack draw from a source of ours. It implements math/rand.Source.
type netstackRandom struct{ random.Source }

// Int63 implements math/rand.Source.
func (r netstackRandom) Int63() int64 { return int64(r.Uint64() >> 1) }

// Seed implements math/rand.Source. It has no effect: the source has its seed.
func (r netstackRandom) Seed(int64) {}

// probeDelay returns how long a timer runs that netstack sets for d: 10 ms if that is 1 to 10 ms.
//
// These are for tail loss probes (RFC 8985 section 7), which Netstack sends when no acknowledgement
// has come for two round trips, measured in milliseconds: after 2 ms on a local network. On a busy
// machine, and from a peer that delays acknowledgements, one is often that late. The probe then
// sends up to 64 KiB again, is taken for the sign of a loss when the acknowledgement does come, and
// the timer's goroutine waits for a connection's lock, on which Netstack's TCP goroutine polls
// until it is preempted. (Linux adds 2 jiffies at least, 2 to 20 ms, net/ipv4/tcp_output.c
// tcp_schedule_loss_probe.) Shorter timers are for reordered segments, longer ones for timeouts.
func probeDelay(d time.Duration) time.Duration {
	if d >= shortestProbe && d < probeTime {
		return probeTime
	}
	return d
}

const (
	shortestProbe = time.Millisecond
	probeTime     = 10 * time.Millisecond
)

// longHeaders says what tcp.SegOverheadSize leaves out of the longest headers.
const longHeaders = 128

// segmentLimit returns the maximum segment size to announce with a receive buffer of that many
// bytes, 0 for that of the path. A window that was closed opens when a segment of it fits, or a
// quarter of the buffer (RFC 9293 section 3.8.6.2.2; netstack announces half of what is free).
//
// netstack never does that in one case: where data ends the handshake, and tcpfix/handshake_data.go
// of package rdma had no room for that, the data counts as memory for good. It may be a whole first
// window, half of the buffer, and its overhead. The window that is left is half of the rest.
func segmentLimit(buffer int) int {
	const overhead = tcp.SegOverheadSize + longHeaders
	limit := max((buffer/2-overhead)/2, header.TCPMinimumMSS)
	if limit > math.MaxUint16 {
		return 0
	}
	return limit
}

// limitSegments applies segmentLimit to an endpoint that is to connect or to listen.
func limitSegments(ep tcpip.Endpoint, buffer int) {
	if limit := segmentLimit(buffer); limit > 0 {
		_ = ep.SetSockOptInt(tcpip.MaxSegOption, limit) // 536 and more are accepted
	}
}

// heldACKs holds pure ACKs back.
type heldACKs struct {
	by   *rdma.ACKCoalescer // nil: ACKs are not held
	told sentCounts         // what is held is not in them
}

// sentCounts holds the counters that netstack counts held ACKs in.
type sentCounts struct{ packets, bytes, ip, segments highWater }

// without returns those counters, by name, without the ACKs that are held or never sent. netstack
// counts an ACK once it is held, so that with ACKs looked at last no difference is too high; one
// that is too low is not told.
func (t *sentCounts) without(acks rdma.ACKStats, c tcpip.Stats) map[string]uint64 {
	packets, bytes := c.NICs.Tx.Packets.Value(), c.NICs.Tx.Bytes.Value()
	ip, segments := c.IP.PacketsSent.Value(), c.TCP.SegmentsSent.Value()
	unsent := acks.Saved + acks.Waiting
	return map[string]uint64{
		"NICs.Tx.Packets":  t.packets.rise(subtract(packets, unsent)),
		"NICs.Tx.Bytes":    t.bytes.rise(subtract(bytes, acks.SavedBytes+acks.WaitingBytes)),
		"IP.PacketsSent":   t.ip.rise(subtract(ip, unsent)),
		"TCP.SegmentsSent": t.segments.rise(subtract(segments, unsent)),
	}
}

// highWater keeps the highest value told of a counter. Any goroutine may use it.
type highWater struct{ told atomic.Uint64 }

// rise returns n, or what was told before if that is more.
func (h *highWater) rise(n uint64) uint64 {
	for told := h.told.Load(); n > told; told = h.told.Load() {
		if h.told.CompareAndSwap(told, n) {
			return n
		}
	}
	return h.told.Load()
}

// subtract returns n without some of it that may have been counted before n.
func subtract(n, some uint64) uint64 { return n - min(n, some) }
