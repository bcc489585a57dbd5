package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/netclock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

const (
	// macMask is the 48 bits of a MAC address in a uint64; also the broadcast address.
	macMask = 1<<48 - 1
	// gsoMaxSize makes super-segments of up to 65375 bytes of payload; an IP packet cannot be
	// larger.
	gsoMaxSize = 65536
)

// Options changes what an Endpoint does. The zero value is right for a server.
type Options struct {
	// NoMerge delivers every received TCP segment by itself. Needed when the stack forwards
	// packets: merged ones are larger than any MTU.
	NoMerge bool
	// NoSegmentation has the stack cut TCP data into segments although the device could.
	NoSegmentation bool
	// RxMode is how the receive workers wait for frames.
	RxMode RxMode
	// Spread is over how many receive queues of its devices the endpoint spreads flows. By load it
	// begins with those that dv.Config.ActiveRxQueues says, for which [Options.ActiveRxQueues] is.
	Spread Spread
	// SpreadRefused is told when a device does not spread flows over another number of queues, with
	// its error, and with nil when it does again. The device is asked again after 1 s to 1 min
	// meanwhile. SpreadRefused must return at once. nil: nobody is told.
	SpreadRefused func(error)
	// RxLimit says how many bytes of received TCP segments without payload may wait for the stack
	// to work them off; DefaultRxLimit if 0, and 256 KiB at least. See flood.go.
	RxLimit int
	// Filter judges what is received, before it is copied, and what is sent; nil: all passes.
	Filter *filter.Filter
	// Clock gives the time, and Random the random numbers, that the endpoint goes by; the zero
	// values are the system's, and any goroutine may read from Random. With a clock that is not
	// the system's RxMode is RxInterrupt, and no sender waits for room.
	Clock  clock.Clock
	Random io.Reader
}

// Validate says in one sentence what is wrong with o, or nil.
func (o Options) Validate() error {
	if o.RxLimit != 0 && o.RxLimit < minRxLimit {
		return fmt.Errorf(
			"a limit of %d bytes for what waits is too low; give %d at least, or 0 for %d",
			o.RxLimit, minRxLimit, DefaultRxLimit)
	}
	return errors.Join(o.RxMode.Validate(), o.Spread.Validate())
}

// Endpoint describes one device as a link of one stack. All methods may be called from any
// goroutine.
type Endpoint struct {
	// Set once.
	opts    Options
	tx      []*sender
	vlan    uint16
	gsoMax  uint32 // 0: none
	csum    bool   // the device computes checksums
	rxLimit uint64 // bytes of segments without payload that may wait in the stack
	flows   *tcpfix.Flows
	random  random.Source
	buffers bufferCheck
	// knows which segments to let in when too many wait
	admission *admission
	rules     *hostRules
	offload   *offload

	// Read for each packet or batch, without a lock.
	queues        atomic.Pointer[current]       // written with switching held
	rx            atomic.Pointer[[]*rxCounters] // by worker; grows, with switching held
	mtu           atomic.Uint32
	limits        packetLimits
	mtuCap        atomic.Uint32 // as SetMTU was told
	mac           atomic.Uint64
	address       atomic.Pointer[tcpip.LinkAddress]
	localAddrs    atomic.Pointer[localAddrs]     // nil: no fast path for what is received
	localPrefixes atomic.Pointer[[]netip.Prefix] // all of whose addresses are ours
	fastPath      atomic.Pointer[fastPath]       // nil: none for what is sent; written with mu held
	sinks         atomic.Pointer[sinkFinder]     // nil: there are none
	joining       atomic.Bool                    // see JoinDatagrams
	taps          taps
	steering      atomic.Pointer[Steering]   // nil: all frames are ours
	settling      atomic.Pointer[rendezvous] // nil: Settled was not called
	passing       atomic.Pointer[rendezvous] // nil: Between was not called
	injected      atomic.Pointer[rxCounters] // nil: nothing has been injected
	closed        atomic.Bool
	refusing      atomic.Bool // see Refuse
	resets        resets

	// of backends that are not in use any more, since New
	pastOutOfBuffer, switches atomic.Uint64
	spreadRefusals            atomic.Uint64

	following sync.Mutex         // held while mtu changes; the last one taken
	injecting sync.Mutex         // held while an Injector delivers
	kept      Injector           // of what tcpfix has kept; guarded by injecting
	switching sync.Mutex         // held while the backend changes; taken before mu
	steered   net.HardwareAddr   // whose frames the backends take; guarded by switching
	groups    []net.HardwareAddr // guarded by switching; nil until SetGroups
	swapped   time.Time          // guarded by switching; see SendsSince

	mu         sync.Mutex   // guards what follows; no delivery happens with it held
	attachment *attachment  // nil when not attached
	workers    *workerGroup // started last; some may still run
	onClose    func()
}

var (
	_ gstack.LinkEndpoint = (*Endpoint)(nil)
	_ gstack.GSOEndpoint  = (*Endpoint)(nil)
)

// New makes an endpoint over all queues of dev, which stays the caller's and must outlive the
// endpoint. Nobody else may use its receive queues until Close has returned.
func New(dev *dv.Device, opts Options) (*Endpoint, error) { return newEndpoint(rings{dev}, opts) }

func newEndpoint(dev backend, opts Options) (*Endpoint, error) {
	mac := dev.MAC()
	if len(mac) != 6 {
		return nil, fmt.Errorf("make link endpoint of %s: its address %v is no Ethernet address",
			dev.Name(), mac)
	}
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("make link endpoint of %s: %w", dev.Name(), err)
	}
	e := &Endpoint{opts: opts, steered: mac, vlan: dev.VLAN(),
		random: random.From(opts.Random), buffers: checkBuffers(unshared, marked),
		rules: &hostRules{turn: make(chan struct{}, 1), of: map[dv.HostRule]*hostRule{}}}
	e.kept.e = e
	e.queues.Store(&current{backend: dev})
	e.addCounters(dev.NumRx())
	e.flows = tcpfix.New(netclock.New(opts.Clock, nil), e.random, e.resend, e.receiveKept)
	e.flows.LimitPackets(e.limits.longest)
	e.admission = newAdmission(e.flows.Key(), opts.Clock)
	e.mtuCap.Store(math.MaxUint32)
	e.mtu.Store(uint32(dev.MTU()))
	e.limits.v4.Store(uint32(dev.MTU()))
	e.limits.v6.Store(uint32(dev.MTU()))
	e.limits.most4, e.limits.most6 = math.MaxUint32, math.MaxUint32
	e.SetLinkAddress(tcpip.LinkAddress(mac))
	for i := range dev.NumTx() {
		e.tx = append(e.tx, newSender(dev.txQueue(i), dev.VLAN(), opts.Clock, e.flows,
			e.admission))
		e.tx[i].kind, e.tx[i].limits = sendKindOf(dev), &e.limits
		e.tx[i].taps, e.tx[i].resets, e.tx[i].number = &e.taps, &e.resets, i
		e.tx[i].filter = opts.Filter
	}
	if e.rxLimit = uint64(opts.RxLimit); e.rxLimit == 0 {
		e.rxLimit = DefaultRxLimit
	}
	csum, maxTSO := dev.offloads()
	e.csum = csum
	if csum && !opts.NoSegmentation {
		e.gsoMax = uint32(min(maxTSO, gsoMaxSize))
	}
	e.offload = newOffload(e)
	return e, nil
}

// SelfTest returns what the endpoint does without because netstack's buffers do not share memory as
// it expects, as of another version of gVisor than the one in go.mod. Nil: nothing. It is found out
// once, by New.
func (e *Endpoint) SelfTest() error { return errors.Join(e.buffers.chunks, e.buffers.marks) }

// MTU implements gstack.LinkEndpoint: the largest IP packet, in bytes. It changes by SetMTU,
// FollowMTU and Switch only.
func (e *Endpoint) MTU() uint32 { return e.mtu.Load() }

// SetMTU implements gstack.LinkEndpoint: no IP packet is to be longer than mtu bytes from now on.
// What is under the endpoint may take less.
func (e *Endpoint) SetMTU(mtu uint32) {
	e.mtuCap.Store(mtu)
	e.FollowMTU()
}

// FollowMTU makes MTU that of the queues in use, as it is now, but no more than SetMTU said, and
// returns it. Without queues it stays. Segments of existing connections are cut accordingly.
func (e *Endpoint) FollowMTU() uint32 {
	e.following.Lock()
	defer e.following.Unlock()
	limit := e.mtu.Load()
	if queues := e.queues.Load(); queues.kind() != BackendNone {
		limit = uint32(queues.MTU())
	}
	mtu := min(limit, e.mtuCap.Load())
	e.mtu.Store(mtu)
	e.limits.v4.Store(min(mtu, e.limits.most4))
	e.limits.v6.Store(min(mtu, e.limits.most6))
	return mtu
}

// packetLimits gives the longest packets that TCP data is sent in, in bytes.
type packetLimits struct {
	v4, v6       atomic.Uint32
	most4, most6 uint32 // besides the MTU; guarded by Endpoint.following
}

// longest returns the length of the longest packet of an IP version, in bytes.
func (l *packetLimits) longest(version tcpip.NetworkProtocolNumber) int {
	if version == header.IPv6ProtocolNumber {
		return int(l.v6.Load())
	}
	return int(l.v4.Load())
}

// LimitSegments cuts TCP data into packets of at most so many bytes from now on, also of existing
// connections, whose segments are longer; MTU is a limit anyway. 0: there is no other.
func (e *Endpoint) LimitSegments(v4, v6 uint32) {
	e.following.Lock()
	e.limits.most4, e.limits.most6 = v4, v6
	if v4 == 0 {
		e.limits.most4 = math.MaxUint32
	}
	if v6 == 0 {
		e.limits.most6 = math.MaxUint32
	}
	e.following.Unlock()
	e.FollowMTU()
}

// MaxHeaderLength implements gstack.LinkEndpoint.
func (e *Endpoint) MaxHeaderLength() uint16 { return hdr.EthLen }

// LinkAddress implements gstack.LinkEndpoint.
func (e *Endpoint) LinkAddress() tcpip.LinkAddress { return *e.address.Load() }

// SetLinkAddress implements gstack.LinkEndpoint. It changes what is sent and accepted, not what the
// NIC steers to us: see [Endpoint.SetMAC].
func (e *Endpoint) SetLinkAddress(address tcpip.LinkAddress) {
	if len(address) != 6 {
		return
	}
	e.address.Store(&address)
	b := []byte(address)
	e.mac.Store(uint64(binary.BigEndian.Uint16(b))<<32 | uint64(binary.BigEndian.Uint32(b[2:])))
}

// SetMAC makes the devices under the endpoint take the frames of mac in place of those of the
// address before, and what is sent come from it: for a link that has the MAC of its netdev, when
// Linux has changed that. Connections stay. On an error the endpoint is as it was, and what devices
// have changed is changed back. Packet sockets are their owner's to change, before.
func (e *Endpoint) SetMAC(mac net.HardwareAddr) error {
	e.switching.Lock()
	defer e.switching.Unlock()
	if e.closed.Load() {
		return dv.ErrClosed
	}
	var changed []*dv.Device
	for _, dev := range devicesOf(e.queues.Load().backend) {
		err := dev.SetMAC(mac)
		if err != nil && dev.Err() == nil { // one that has failed is about to leave
			for _, back := range changed {
				err = errors.Join(err, back.SetMAC(e.steered))
			}
			return err
		}
		changed = append(changed, dev)
	}
	e.steered = bytes.Clone(mac)
	e.SetLinkAddress(tcpip.LinkAddress(mac))
	return nil
}

// SetGroups says which multicast addresses are ours, in place of those of the call before, so that
// an e-switch in front of the port passes frames to them; see dv.Device.SetGroups. netstack tells
// its links nothing about groups: the owner of the stack does.
func (e *Endpoint) SetGroups(groups []net.HardwareAddr) error {
	e.switching.Lock()
	defer e.switching.Unlock()
	return e.setGroups(groups)
}

// Capabilities implements gstack.LinkEndpoint.
//
// Reception is claimed to be verified because it is: the NIC vouches for a frame, or the worker
// computes its checksum (rx.go). Transmission is not claimed:
// the stack would then leave the checksum out of UDP datagrams that it goes on to fragment, where
// no NIC can put it in. TCP data is offloaded all the same, as a part of segmentation
// (SupportedGSO).
func (e *Endpoint) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityResolutionRequired | gstack.CapabilityRXChecksumOffload
}

// GSOMaxSize implements gstack.GSOEndpoint.
func (e *Endpoint) GSOMaxSize() uint32 { return e.gsoMax }

// SupportedGSO implements gstack.GSOEndpoint.
func (e *Endpoint) SupportedGSO() gstack.SupportedGSO {
	if e.gsoMax == 0 {
		return gstack.GSONotSupported
	}
	return gstack.HostGSOSupported
}

// ARPHardwareType implements gstack.LinkEndpoint.
func (e *Endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader implements gstack.LinkEndpoint. The source is the address of now: routes that
// connections have from before SetMAC have the one of then.
func (e *Endpoint) AddHeader(pkt *gstack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(hdr.EthLen))
	eth.Encode(&header.EthernetFields{
		SrcAddr: e.LinkAddress(),
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements gstack.LinkEndpoint.
func (e *Endpoint) ParseHeader(pkt *gstack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(hdr.EthLen)
	return ok
}

// Attach implements gstack.LinkEndpoint: it starts the workers, or tells them to end when
// dispatcher is nil. It waits for nothing: the stack calls it with its own mutex held.
func (e *Endpoint) Attach(dispatcher gstack.NetworkDispatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.detach()
	if dispatcher == nil || e.closed.Load() {
		return
	}
	e.attachment = &attachment{dispatcher: dispatcher}
	e.startWorkers(e.attachment, e.queues.Load().backend)
}

// detach is called with mu held.
func (e *Endpoint) detach() {
	if e.attachment != nil {
		e.fastPath.Store(nil)
		for _, t := range e.tx {
			t.dropQueued()
		}
		e.flows.Forget()
		e.attachment.stopping.Store(true)
		e.workers.wake()
		e.workers.stopSpreaders()
		e.attachment = nil
	}
}

// startWorkers runs the workers of an attachment on queues as soon as those before have ended. It
// is called with mu held.
func (e *Endpoint) startWorkers(s *attachment, queues backend) {
	g, previous := &workerGroup{queues: queues, spreaders: e.spreaders(queues)}, e.workers
	e.workers = g
	g.running.Go(func() {
		if previous != nil {
			previous.running.Wait()
		}
		for i := range queues.NumRx() {
			g.running.Go(func() { e.newWorker(s, g, i).runLabelled() })
		}
	})
}

// BindStack delivers IP fragments directly to the network layer of the stack's NIC id, on which the
// stack verifies the checksum of what it reassembles. Unbound, that sum is never verified, as each
// fragment counts as verified by the link. It also is what SetLocalAddresses needs. To be called
// once CreateNIC has returned; it holds until the NIC is removed.
func (e *Endpoint) BindStack(s *gstack.Stack, id tcpip.NICID) error {
	n := &networks{stack: s, nic: id}
	for proto, network := range map[tcpip.NetworkProtocolNumber]*gstack.NetworkEndpoint{
		hdr.TypeIPv4: &n.ipv4, hdr.TypeIPv6: &n.ipv6,
	} {
		found, err := s.GetNetworkEndpoint(id, proto)
		if err != nil {
			return fmt.Errorf("bind link endpoint to NIC %d: %s", id, err)
		}
		*network = found
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.attachment == nil {
		return fmt.Errorf("bind link endpoint to NIC %d: it is not attached", id)
	}
	n.fastPath = newFastPath(e.attachment.dispatcher, s, id)
	e.fastPath.Store(n.fastPath)
	e.attachment.networks.Store(n)
	return nil
}

// bound returns what BindStack found; nil if the endpoint is not bound.
func (e *Endpoint) bound() *networks {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.attachment == nil {
		return nil
	}
	return e.attachment.networks.Load()
}

// IsAttached implements gstack.LinkEndpoint.
func (e *Endpoint) IsAttached() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.attachment != nil
}

// Wait implements gstack.LinkEndpoint, but returns at once: the stack calls it with the mutex held
// that a worker may be waiting for. Close waits.
func (e *Endpoint) Wait() {}

// SetOnCloseAction implements gstack.LinkEndpoint: f is called once, at the end of Close.
func (e *Endpoint) SetOnCloseAction(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onClose = f
}

// Close implements gstack.LinkEndpoint: no packet is delivered any more when it returns, new ones
// to send are refused, and the rules of host mode are gone. It may be called again, but not from
// inside a delivery. The device stays open.
func (e *Endpoint) Close() {
	e.closed.Store(true)
	e.offload.close()
	e.rules.close()
	e.mu.Lock()
	e.detach()
	last := e.workers
	e.mu.Unlock()
	if last != nil {
		last.wait()
	}
	e.injecting.Lock() // what is injected has been delivered
	e.flows.Close()
	e.kept.release()
	e.injecting.Unlock()
	for _, t := range e.tx {
		t.close()
	}
	e.mu.Lock()
	action := e.onClose
	e.onClose = nil
	e.mu.Unlock()
	if action != nil {
		action()
	}
}
