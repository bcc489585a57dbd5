package tcpfix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
)

// lossy is one run on virtual time: two netstacks, each with the link's functions for TCP, and a
// wire that loses frames between them. With GOMAXPROCS at 1 the run is reproducible.
type lossy struct {
	seed   uint64
	loss   float64 // probability that a frame is lost, and that it is late by up to 1 ms
	gso    bool    // the NIC cuts segments
	upload bool    // the client sends the bulk data, not the server
	alone  bool    // netstack without the link's help, with its own timers
	noRACK bool
	// the link retransmits nothing
	noResend bool
	// acknowledgements of gaps are not held back
	noReorder bool
	delay     time.Duration                // of each frame; 0: it varies
	dark      func(now time.Duration) bool // when all frames are lost; nil: never
	see       func(*tcp.TCPEndpointState)  // called for each segment that netstack has processed
}

// outcome is the result of a run.
type outcome struct {
	done      bool          // false: it stopped forever, or did not end in lossyLimit
	connected bool          // data was sent
	took      time.Duration // of virtual time
	still     time.Duration // the longest time without a frame since the first data
	resent    uint64        // segments sent by the link
}

const (
	lossyMTU    = 1500
	lossyRounds = 6
	lossyMuch   = 80 << 10
	lossyLimit  = 10 * time.Minute
)

// lossyEnd is one end of the wire. It is netstack's link.
type lossyEnd struct {
	*channel.Endpoint
	flows *Flows // nil: none
	stack *gstack.Stack
	plain bool // netstack gets frames as they are, and the link no SACK
}

// MaxHeaderLength implements gstack.LinkEndpoint.
func (e *lossyEnd) MaxHeaderLength() uint16 { return hdr.EthLen }

// AddHeader implements gstack.LinkEndpoint.
func (e *lossyEnd) AddHeader(pkt *gstack.PacketBuffer) {
	binary.BigEndian.PutUint16(pkt.LinkHeader().Push(hdr.EthLen)[12:],
		uint16(pkt.NetworkProtocolNumber))
}

// WritePackets implements gstack.LinkWriter.
func (e *lossyEnd) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	if e.flows == nil {
		return e.Endpoint.WritePackets(list)
	}
	var kept gstack.PacketBufferList
	for _, pkt := range list.AsSlice() {
		s := hdr.ParseSent(pkt, e.flows.Key())
		grown, drop := e.flows.Sent(pkt, &s)
		switch {
		case drop:
		case grown != nil:
			defer grown.DecRef()
			kept.PushBack(grown)
		default:
			kept.PushBack(pkt)
		}
	}
	return e.Endpoint.WritePackets(kept)
}

// post is called by the resender.
func (e *lossyEnd) post(_ *gstack.PacketBuffer, build func() *gstack.PacketBuffer) bool {
	if pkt := build(); pkt != nil {
		var list gstack.PacketBufferList
		list.PushBack(pkt)
		_, _ = e.WritePackets(list)
		pkt.DecRef()
	}
	return true
}

// arrive receives a frame from the wire.
func (e *lossyEnd) arrive(frame []byte) {
	if e.flows != nil {
		whole, l := bytes.Clone(frame), hdrtest.Parse(frame)
		if e.plain {
			sack := hdr.OptionsOf(frame[l.L4:]).SACK
			for i := range sack {
				sack[i] = hdr.OptNop
			}
		}
		if e.flows.Received(frame, l)&Held != 0 && !e.plain {
			return
		}
		if e.plain {
			frame = whole
		}
		e.flows.Arrives(frame, l, l.End-l.L4-int(frame[l.L4+12]>>4)*4, frame[l.L4+13])
	}
	pkt := gstack.NewPacketBuffer(
		gstack.PacketBufferOptions{Payload: buffer.MakeWithData(frame[hdr.EthLen:])})
	e.InjectInbound(header.IPv4ProtocolNumber, pkt)
	pkt.DecRef()
}

// newLossyEnd makes a netstack with address 10.0.0.n.
func (o *lossy) newLossyEnd(c *virtualClock, n byte) *lossyEnd {
	e := &lossyEnd{Endpoint: channel.New(8192, lossyMTU, "")}
	e.LinkEPCapabilities |= gstack.CapabilityRXChecksumOffload
	if o.gso {
		e.SupportedGSOKind = gstack.HostGSOSupported
	}
	var clock tcpip.Clock = c
	if !o.alone {
		e.flows = New(c, random.Source{}, e.post, e.arrive)
		if o.noResend {
			e.flows.resend.close()
		}
		if o.noReorder {
			e.flows.reorder.close()
		}
		clock = patience{c}
	}
	e.stack = gstack.New(gstack.Options{
		Clock: clock, NetworkProtocols: []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocolProbe(o.probe)},
	})
	o.tune(e.stack)
	must(e.stack.CreateNIC(1, e))
	address := tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4([4]byte{10, 0, 0, n}),
		PrefixLen: 24}
	must(e.stack.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: address}, gstack.AddressProperties{}))
	e.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return e
}

func (o *lossy) probe(s *tcp.TCPEndpointState) {
	if o.see != nil {
		o.see(s)
	}
}

func must(err tcpip.Error) {
	if err != nil {
		panic(fmt.Sprint(err))
	}
}

// tune sets the options that package stack sets.
func (o *lossy) tune(s *gstack.Stack) {
	sack, cubic, recovery := tcpip.TCPSACKEnabled(true), tcpip.CongestionControlOption("cubic"),
		tcpip.TCPRACKLossDetection
	if o.noRACK {
		recovery = 0
	}
	options := []tcpip.SettableTransportProtocolOption{&sack, &cubic, &recovery}
	if !o.alone {
		rto, send := tcpip.TCPMinRTOOption(120*time.Millisecond),
			tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 6 << 20}
		options = append(options, &rto, &send)
	}
	for _, opt := range options {
		must(s.SetTransportProtocolOption(tcp.ProtocolNumber, opt))
	}
}

// cut makes frames of a packet, as the NIC does.
func cut(pkt *gstack.PacketBuffer) (frames [][]byte) {
	view := pkt.ToView()
	defer view.Release()
	b := append([]byte(nil), view.AsSlice()...)
	l := hdrtest.Parse(b)
	headers, mss := l.L4+int(b[l.L4+12]>>4)*4, int(pkt.GSOOptions.MSS)
	if pkt.GSOOptions.Type == gstack.GSONone || len(b)-headers <= mss {
		return [][]byte{b}
	}
	seq, _ := hdr.Numbers(b[l.L4:])
	for at := headers; at < len(b); at += mss {
		end := min(at+mss, len(b))
		f := append(append([]byte(nil), b[:headers]...), b[at:end]...)
		binary.BigEndian.PutUint32(f[l.L4+4:], seq+uint32(at-headers))
		if end != len(b) {
			f[l.L4+13] &^= hdr.FlagsLast
		}
		l.Seal(f)
		frames = append(frames, f)
	}
	return frames
}

// lossyRun is the state of a run.
type lossyRun struct {
	lossy
	settler
	clock virtualClock
	rand  *rand.Rand
	ends  [2]*lossyEnd
	last  time.Duration // when a frame was sent last; 0 before the first data
	outcome
}

// carry moves the frames that one end has sent onto the wire, and reports whether there were any.
func (r *lossyRun) carry(from, to *lossyEnd) bool {
	any := false
	for pkt := from.Read(); pkt != nil; pkt = from.Read() {
		any = true
		for _, f := range cut(pkt) {
			r.send(f, to)
		}
		pkt.DecRef()
	}
	return any
}

// send puts a frame onto the wire.
func (r *lossyRun) send(f []byte, to *lossyEnd) {
	l := hdrtest.Parse(f)
	if r.last > 0 {
		r.still = max(r.still, r.clock.now-r.last)
	}
	r.connected = r.connected || l.L4+int(f[l.L4+12]>>4)*4 < l.End
	if r.connected {
		r.last = r.clock.now
	}
	if r.rand.Float64() < r.loss || r.dark != nil && r.dark(r.clock.now) {
		return
	}
	d := time.Duration(30+r.rand.IntN(20)) * time.Microsecond
	if r.delay > 0 {
		d = r.delay
	}
	if r.rand.Float64() < r.loss {
		d += time.Duration(r.rand.IntN(1000)) * time.Microsecond
	}
	r.clock.AfterFunc(d, func() { to.arrive(f) })
}

// settle carries frames until none are left at this point of time.
func (r *lossyRun) settle() {
	for moved := true; moved; {
		r.settler.settle()
		moved = r.carry(r.ends[0], r.ends[1]) || r.carry(r.ends[1], r.ends[0])
	}
}

// answer sends bulk data and two small writes, like gRPC's trailer and window update, for each
// request.
func answer(c net.Conn) error {
	for range lossyRounds {
		if _, err := io.ReadFull(c, make([]byte, 13)); err != nil {
			return err
		}
		for _, n := range []int{lossyMuch, 69, 17} {
			if _, err := c.Write(make([]byte, n)); err != nil {
				return err
			}
		}
	}
	_, err := io.Copy(io.Discard, c)
	return errors.Join(err, c.Close())
}

// ask is answer's peer.
func ask(c net.Conn) error {
	for range lossyRounds {
		if _, err := c.Write(make([]byte, 13)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, lossyMuch+69+17)); err != nil {
			return err
		}
	}
	return c.Close()
}

// start begins the transfers. The requesting side's outcome is sent to done.
func (r *lossyRun) start(done chan error) (stop func()) {
	addr := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 80}
	ln, err := gonet.ListenTCP(r.ends[0].stack, addr, ipv4.ProtocolNumber)
	if err != nil {
		panic(err)
	}
	answerer := func(c net.Conn) { _ = answer(c) }
	asker := func(c net.Conn) { done <- ask(c) }
	server, client := answerer, asker
	if r.upload {
		server, client = asker, answerer
	}
	go func() {
		if c, err := ln.Accept(); err == nil {
			server(c)
		}
	}()
	go func() {
		c, err := gonet.DialContextTCP(context.Background(), r.ends[1].stack,
			addr, ipv4.ProtocolNumber)
		if err != nil {
			done <- err
			return
		}
		client(c)
	}()
	return func() { _ = ln.Close() }
}

// run continues until all answers have arrived.
func (o lossy) run() outcome {
	r := &lossyRun{lossy: o, settler: newSettler(), rand: rand.New(rand.NewPCG(o.seed, 1))}
	r.ends = [2]*lossyEnd{r.newLossyEnd(&r.clock, 1), r.newLossyEnd(&r.clock, 2)}
	done := make(chan error, 1)
	stop := r.start(done)
	for r.settle(); len(done) == 0 && r.clock.now < lossyLimit && r.clock.step(); r.settle() {
	}
	r.took = r.clock.now
	r.done = len(done) > 0 && <-done == nil
	stop()
	for _, e := range r.ends {
		if e.flows != nil {
			r.resent += e.flows.Counts().Resent
			e.flows.Close()
		}
		e.stack.Close()
	}
	for n := 0; n < 200 && r.clock.step(); n++ {
		r.settle()
	}
	return r.outcome
}
