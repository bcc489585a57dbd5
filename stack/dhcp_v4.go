package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Ports of DHCP (RFC 2131 section 4.1).
const (
	dhcpServerPort = 67
	dhcpClientPort = 68
)

// dhcpFirstWait is how long the first message is given; each repetition doubles it, up to
// dhcpLongestWait (RFC 2131 section 4.1, which begins with 4 s).
const (
	dhcpFirstWait   = time.Second
	dhcpLongestWait = 64 * time.Second
)

// declineWait is how long a client waits after a DECLINE before it begins again (RFC 2131 section
// 3.1 point 5).
const declineWait = 10 * time.Second

// dhcpWanted is what we ask for besides an address.
var dhcpWanted = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter,
	dhcpv4.OptionDomainNameServer,
}

// ErrNoLease says that no DHCP server gave an address in time.
var ErrNoLease = errors.New("no DHCP server gave an address")

// errBadLease is in the error of an answer without a usable lease: a refusal, or an address that is
// not a host's.
var errBadLease = errors.New("no lease")

// dhcp4 is the DHCPv4 client. One goroutine at a time uses it.
type dhcp4 struct {
	s      *Stack
	conn   *UDPConn
	linkUp chan struct{} // the link is up again
	lease  *lease4       // nil until acquire succeeds
}

// newDHCP4 opens the client's port. Close ends it.
func newDHCP4(s *Stack) (dhcpClient, error) {
	if err := s.hasMAC(); err != nil {
		return nil, err
	}
	c, err := s.ListenUDP("udp4", &net.UDPAddr{Port: dhcpClientPort})
	if err != nil {
		return nil, fmt.Errorf("open the DHCP client's port: %w", err)
	}
	return &dhcp4{s: s, conn: c, linkUp: s.linkUp.add()}, nil
}

// hasMAC refuses to ask for an address on a link where servers have nothing to tell us by.
func (s *Stack) hasMAC() error {
	if len(s.HardwareAddr()) == 0 {
		return errors.New("the link has no hardware address, by which DHCP tells hosts apart; " +
			"give Addresses instead")
	}
	return nil
}

// close implements dhcpClient.
func (d *dhcp4) close() { d.conn.Close() }

// acquire implements dhcpClient. After a refusal it begins again, each time later; after an address
// that is in use 10 s later, but as after a refusal where ctx leaves no time for that.
func (d *dhcp4) acquire(ctx context.Context) error {
	later := doubling(dhcpFirstWait, dhcpLongestWait)
	for wait := later(0); ; wait = later(wait) {
		l, err := d.offer(ctx)
		if err == nil {
			if err = d.s.useAddress(ctx, l.prefix); err == nil {
				d.lease = l
				return d.use(l)
			}
		}
		pause := d.s.jitter(wait)
		switch {
		case errors.Is(err, ErrDuplicateAddress):
			d.decline(l)
			enough := d.s.cfg.declineWait + dhcpFirstWait + max(d.s.cfg.DuplicateDetection, 0)
			if end, limited := ctx.Deadline(); !limited || d.s.clock.Until(end) > enough {
				pause = max(pause, d.s.cfg.declineWait)
			}
		case !errors.Is(err, errBadLease):
			return err
		}
		d.s.dhcp.refused.Add(1)
		d.s.log.Warn("DHCP", "interface", d.s.name, "error", err)
		if !d.s.pause(ctx, pause) {
			return noLease(ctx, d.s, err)
		}
	}
}

// noLease is the error of a client whose ctx has ended.
func noLease(ctx context.Context, s *Stack, last error) error {
	return fmt.Errorf("%w on %s: %w (%w)", ErrNoLease, s.name, context.Cause(ctx), last)
}

// use takes what came with the address into use.
func (d *dhcp4) use(l *lease4) error {
	for _, r := range l.refused {
		d.s.dhcp.refused.Add(1)
		d.s.log.Warn("DHCP: refused", "interface", d.s.name, "what", r)
	}
	routes := append([]Route{{Destination: l.prefix.Masked()}}, l.routes...)
	return d.s.applyAutoconf(fromDHCPv4, routes, l.dns)
}

// offer is DISCOVER, OFFER, REQUEST, ACK.
func (d *dhcp4) offer(ctx context.Context) (*lease4, error) {
	discover, err := dhcpv4.NewDiscovery(d.s.HardwareAddr(), d.s.newXID4(),
		dhcpv4.WithBroadcast(true),
		dhcpv4.WithRequestedOptions(dhcpWanted...))
	if err != nil {
		return nil, err
	}
	repeat := doubling(dhcpFirstWait, dhcpLongestWait)
	offer, err := d.ask(ctx, discover, d.broadcast, repeat, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true),
		dhcpv4.WithRequestedOptions(dhcpWanted...))
	if err != nil {
		return nil, err
	}
	asked := d.s.clock.Now()
	ack, err := d.ask(ctx, request, d.broadcast, repeat,
		dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak)
	if err != nil {
		return nil, err
	}
	return parseLease4(ack, asked, d.s.cfg.renewal)
}

// decline tells the server that somebody uses the address (RFC 2131 section 3.1 step 5).
func (d *dhcp4) decline(l *lease4) {
	m, err := dhcpv4.New(d.s.newXID4(), dhcpv4.WithHwAddr(d.s.HardwareAddr()),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.prefix.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.server.AsSlice())))
	if err == nil {
		d.broadcast(m)
	}
}

// ask sends m, as often as repeat has it, until an answer of one of the wanted types comes or ctx
// ends. When the link comes up, repeat begins anew: what was sent before went nowhere. What there
// is no room for in the ring, as on a port that is paused, is as good as lost.
func (d *dhcp4) ask(ctx context.Context, m *dhcpv4.DHCPv4, send func(*dhcpv4.DHCPv4) error,
	repeat schedule, want ...dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	stop := context.AfterFunc(ctx, func() { d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for wait := repeat(0); ; {
		d.s.dhcp.sent.Add(1)
		if err := send(m); err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return nil, fmt.Errorf("send %v: %w", m.MessageType(), err)
		}
		d.conn.SetReadDeadline(d.s.clock.Now().Add(d.s.jitter(wait)))
		linkCame := readUntilLinkUp(d.conn, d.linkUp)
		answer := d.answer(ctx, m.TransactionID, want)
		if wait = repeat(wait); linkCame() {
			wait = repeat(0)
			defer notify(d.linkUp) // the answer may be of the link before: it is to be confirmed
		}
		if answer != nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w on %s: %w", ErrNoLease, d.s.name, context.Cause(ctx))
		}
	}
}

// answer returns the answer to a message of ours, or nil at the deadline of reads.
func (d *dhcp4) answer(ctx context.Context, id dhcpv4.TransactionID,
	want []dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	for ctx.Err() == nil {
		m, err := d.read()
		if err != nil {
			return nil
		}
		if m.TransactionID == id && wanted(m.MessageType(), want) {
			return m
		}
	}
	return nil
}

func wanted(t dhcpv4.MessageType, want []dhcpv4.MessageType) bool {
	for _, w := range want {
		if t == w {
			return true
		}
	}
	return false
}

// read returns the next answer that is for our hardware address. An error is one of the socket.
func (d *dhcp4) read() (*dhcpv4.DHCPv4, error) {
	buf := make([]byte, 1500)
	for {
		n, err := d.conn.Read(buf)
		if err != nil {
			return nil, err
		}
		m, err := dhcpv4.FromBytes(buf[:n])
		if err == nil && m.OpCode == dhcpv4.OpcodeBootReply &&
			m.ClientHWAddr.String() == d.s.HardwareAddr().String() {
			return m, nil
		}
	}
}

// broadcast sends m from 0.0.0.0 to 255.255.255.255. A socket can not, as long as there is no
// address to send from.
func (d *dhcp4) broadcast(m *dhcpv4.DHCPv4) error {
	payload := m.ToBytes()
	const headers = header.IPv4MinimumSize + header.UDPMinimumSize
	packet := make([]byte, headers, headers+len(payload))
	packet = append(packet, payload...)
	udp := header.UDP(packet[header.IPv4MinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: dhcpClientPort, DstPort: dhcpServerPort,
		Length: uint16(len(udp))})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, header.IPv4Any,
		header.IPv4Broadcast, uint16(len(udp)))
	udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(payload, sum)))
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber),
		SrcAddr: header.IPv4Any, DstAddr: header.IPv4Broadcast,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return asError("broadcast", d.s.net.WritePacketToRemote(nicID, header.EthernetBroadcastAddress,
		ipv4Protocol, buffer.MakeWithData(packet)))
}

// unicast sends to one server, from the address it gave.
func (d *dhcp4) unicast(server netip.Addr) func(*dhcpv4.DHCPv4) error {
	return func(m *dhcpv4.DHCPv4) error {
		_, err := d.conn.WriteTo(m.ToBytes(),
			&net.UDPAddr{IP: server.AsSlice(), Port: dhcpServerPort})
		return err
	}
}
