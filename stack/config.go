package stack

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/memlimit"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/link/xdp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// Config configures a stack: its device, addresses, routes and protocols. The zero value is useful:
// an IPv6 link-local address, loopback, and no gateway.
type Config struct {
	// NIC names the port that [Open] opens and its queues; [New] does not look at it. Its TxQueues
	// default to twice GOMAXPROCS, at most 8, but not to fewer than RxQueues; to 1 if GOMAXPROCS
	// is 1.
	NIC dv.NIC
	// Driver may change what [Open] has made of NIC before the device is opened: formats of
	// descriptors, hooks (package dv). Nil: nothing is changed.
	Driver func(*dv.Config)
	// Uplink says what [Open] puts under the stack and what happens when that fails.
	Uplink UplinkOptions

	// Name is the interface's name, as it appears in zones ("fe80::1%eth0") and logs. Default: that
	// of the port's netdev, "net0" without one. Zones of addresses that are given may also be the
	// name or the index of the netdev.
	Name string

	// Addresses are our own addresses with the prefix length of their subnet; [ParseAddress] reads
	// one. An IPv6 link-local address is added by itself. Every IPv4 or IPv6 address costs about
	// 30 ns per received packet, so a log line warns above 16. Packets for which nobody names a
	// source leave, as on Linux with addresses added in this order, by IPv4 from the first address
	// in the subnet of the next hop, else from the first; by IPv6 from the best for the destination
	// (RFC 6724), of equals from the last.
	//
	// One without a prefix length, netip.PrefixFrom(addr, -1), takes from the port's Linux
	// interface, as it is at [Open], the length of the subnet it is in, and what else Auto takes
	// from there.
	Addresses []netip.Prefix

	// Dynamic asks the network for addresses beside those of Addresses: [Auto], or
	// [DHCPv4], [SLAAC] and [DHCPv6] or-ed together. Default: nothing is asked for.
	Dynamic Dynamic

	// Gateways are default routers, at most one per family. Each must lie in the subnet of one of
	// Addresses or in a route of Routes that has no gateway, or be an IPv6 link-local address. If
	// no address of its family has a subnet (/32, /128), as in many clouds, it is taken to be on
	// the link.
	Gateways []netip.Addr

	// Routes are further routes; the longest matching prefix wins.
	Routes []Route

	// DNS names the resolvers that names are looked up with, in order of preference, on port 53.
	DNS []netip.Addr

	// ResolvConf gives the path of a resolv.conf(5) file to take resolvers, search domains and
	// options from: those that package net heeds. It is read again when it changes. Resolvers in
	// DNS come before those in the file, those that the network announces after. Default: none.
	ResolvConf string

	// Addressing says how addresses are obtained, checked and announced.
	Addressing AddressOptions

	// Host has [Open]'s stack serve on the host's own addresses and MAC: on those of the netdev
	// that NIC.Device names, or whose port it is. The ports that the program listens on, and a
	// block of 256 above 61439 that it connects from (TIME-WAIT is reused), are the stack's on
	// that netdev; all else stays Linux's, which answers ARP and ping and has its own servers on
	// other ports. Addresses and routes are the netdev's, also when they change: connections of an
	// address that is removed are reset. A port that another process of the host has is refused
	// with EADDRINUSE, and the other way round.
	//
	// On an mlx5 port (or in a VLAN on one) rules lead the frames to these ports to rings, from
	// which a listener's are gone when it is closed: connections from before then come by packet
	// sockets of the netdev, as does all that no rule takes, and everything while the device is
	// away. Other netdevs have packet sockets only.
	//
	// The kernel has a socket for each of these ports, too. It serves who does not come by that
	// netdev: processes of this host, its containers, other interfaces. Their connections come out
	// of the same listener as *[net.TCPConn] ([TCPListener.AcceptTCP] leaves them), their datagrams
	// out of the same [UDPConn]. So do [Stack.DialContext] and [Dialer.DialContext] connect to what
	// the kernel reaches otherwise than by the netdev. Not available there: multicast, NIC.MAC,
	// NIC.VLAN, Fallback. A listener or socket bound to any address is on localhost as well, unless
	// another process has the port there. Who dials, from this host, a port that nobody listens at,
	// of the block or with connections of the stack left from a listener, gets no answer instead of
	// a refusal until the port is the kernel's again.
	//
	// A netdev that is removed and made again with its name, MAC and addresses, as by devlink
	// reload, is served on again: connections wait for it for as long as MaxOutage says, and
	// addresses that it does not have 30 s later are given up.
	Host bool

	// Predecessor is a process whose place [Open]'s stack takes, with its MAC address: the stack
	// receives what is for its own sockets only until [Stack.TakeOver]. Both must be on rings of
	// one device, or on packet sockets, and both have Host or neither. The addresses are those of
	// this Config, and are not looked for on the network before. Open and Close of the stack close
	// it. Nil: there is none.
	Predecessor *Predecessor

	// NoFastPath sends every packet through netstack's network layer. By default TCP and UDP that
	// come for our own addresses, and UDP that goes out, skip it. That takes 1 us less per packet,
	// and 2 us less per datagram, which goes to its socket at once. What a program has set up in
	// the network layer through [Stack.Netstack] is skipped, too: filter rules, packet and raw
	// sockets.
	NoFastPath bool

	// DSCP marks what TCP and UDP send, 0 to 63 (RFC 2474); 46 is expedited forwarding. In a VLAN
	// (NIC.VLAN) its upper three bits are the frames' priority. SetTrafficClass of a conn changes
	// it there. Netstack answers a SYN without it.
	DSCP uint8

	// TCP holds the options of TCP; its zero value is what measured best.
	TCP TCPOptions
	// UDPBuffer bounds the payload that waits to be read from one socket before datagrams are
	// dropped, and the datagrams that wait there for a neighbour's address: Default for each
	// direction, up to Max by SetReadBuffer, which is doubled as on Linux, and SetWriteBuffer.
	// Default 4 MiB, up to 16 MiB: with 32 KiB nine of ten datagrams of a 64-byte burst are lost.
	UDPBuffer BufferRange

	// Filter judges the packets of [Open]'s stack, before they are copied and as they are sent; the
	// program may change its list at any time. What programs of this host and its containers send
	// to the stack by the kernel ([Config.Host], loopback) is not judged: nftables sees that. [New]
	// refuses it: a link has its own ([rdma.Options]). Nil: all packets pass. docs/firewall.md says
	// how lists are written and what they mean.
	Filter *Filter

	// HealthChanged is told every change of [Stack.Health], one at a time and in order; resets of
	// queues within a second. It may be called before [Open] returns, and must not call Close. Nil:
	// nobody is told.
	HealthChanged func(Health)

	// Logger receives the few events worth a line: addresses taken into use, a duplicate address.
	// Nothing is logged per packet or per connection. Nil is silence.
	Logger *slog.Logger

	// Clock gives the time that all of the stack goes by, its device and link included: TCP's
	// timers, deadlines, leases. The zero value is the system's clock. With another, deadlines of
	// conns and of contexts are times of that clock; those of package time are not reached. For
	// simulations, see package clock/clocktest.
	Clock clock.Clock
	// Random says where all random numbers come from, and may be read by any goroutine; nil:
	// crypto/rand. For simulations: what should be hard to guess is what Random makes it.
	Random io.Reader

	local         localPrefixes  // see WithLocal
	hostAddresses []netip.Prefix // of the netdev, with Host; set by Open
	netdevName    string         // set by Open if the port has a netdev here

	bond       *uplink.BondFacts // of a test; nil: the kernel's
	hostKernel HostKernel        // see WithHostKernel; nil: Linux

	renewal     time.Duration // least time between renewals of a lease; a test may shorten it
	declineWait time.Duration // after a DECLINE; likewise
	orphanRate  int           // bytes per second; a test may raise it
}

// UplinkOptions says what carries the frames of a stack that [Open] makes, how it is read, and what
// happens when it fails.
type UplinkOptions struct {
	// Backend says what [Open] puts under the stack: BackendAuto (the default) takes packet sockets
	// where NIC.Device has no rings. [New] does not look at it.
	Backend Backend

	// XDP says how BackendXDP sends, by packet sockets unless told otherwise, and whether it may
	// receive without a copy.
	XDP XDPOptions

	// MaxOutage is for how long [Open]'s stack may be without a link before connections end, and
	// new ones are refused, with ENETDOWN; listeners and UDP sockets stay, and serve again when the
	// link is back. Default 2 min. It counts while the device has failed or is removed and there
	// are no packet sockets (Fallback) in its place; a connection's own TCP_USER_TIMEOUT
	// holds as well. Negative: the stack ends with its device, see [Stack.Err].
	MaxOutage time.Duration

	// Fallback is the netdev whose packet sockets carry the frames while NIC's device is away.
	// Default: the netdev that the port's is a member of (a bond, or the netvsc or net_failover
	// device of a virtual function), or else the port's own; "none": nothing does. With NIC.Model
	// there is no default, and none where the stack has the port's own MAC address.
	Fallback string

	// OpenInterface opens what carries frames where packet sockets would (BackendPacket, Fallback),
	// for a program that has something of its own; nil: [packet.Open]. Zero fields of what it gets
	// mean what [packet.Config] says of them. It is called again when the interface has ended, by
	// any goroutine, until it succeeds. The stack closes what it returns. Not with Host.
	OpenInterface func(packet.Config) (packet.Interface, error)

	// GracePeriod says how long a device that has come back must work: one that fails sooner is not
	// looked for again, but by [Stack.Recover]. Default 0: it always is, as virtual functions are
	// taken away and given back as routine.
	GracePeriod time.Duration

	// RxMode is how [Open] has the receive queues of NIC wait for frames: RxAdaptive (the default),
	// RxPolling or RxInterrupt. [New] does not look at it.
	RxMode RxMode

	// Spread is over how many of NIC's receive queues flows are spread: SpreadLoad (the default) is
	// as many as the load needs, at most half of GOMAXPROCS but one at least; SpreadAll is all.
	// With RxPolling it is all. [New] does not look at it.
	Spread Spread

	// RxLimit says how many bytes of received TCP segments without payload may wait to be worked
	// off, which netstack does not bound: beyond it, strangers' are dropped first. Default 16 MiB,
	// 256 KiB at least. [New] does not look at it.
	RxLimit int
}

// AddressOptions says how addresses are obtained, checked and announced.
type AddressOptions struct {
	// Timeout says how long New waits for DHCP. Default 15 s.
	Timeout time.Duration

	// DuplicateDetection is for how long other hosts are asked, at start, whether they already use
	// one of Addresses (RFC 5227 for IPv4, RFC 4862 for IPv6). Default 300 ms, in three probes.
	// Negative: do not ask. [New] waits this long. If somebody has the link-local address the stack
	// goes on without it, unless there is no other. An address in use is never given up: when
	// another host claims it, it is announced again, once per 10 s (RFC 5227 section 2.4), logged
	// and counted.
	DuplicateDetection time.Duration

	// NoAnnounce suppresses the gratuitous ARP and unsolicited neighbour advertisements that are
	// sent at start so that neighbours forget an earlier owner of our addresses.
	NoAnnounce bool
}

// Dynamic names a set of protocols that give addresses.
type Dynamic uint8

// The protocols that give addresses.
const (
	// DHCPv4 asks a DHCP server for an IPv4 address, router and resolvers (RFC 2131) and keeps the
	// lease while the stack lives. [New] returns once there is an address. What Gateways and DNS
	// say is used too. Connections of an address are reset when another one has taken its place,
	// and go on when the same one is given again. A lease is renewed once a minute at most, and
	// taken to last two at least. One whose mask is none or /0 is refused, as are its routers that
	// are ourselves or off the subnet, with a line in the log; a /32 has its routers on the link.
	// After an address that another host has, servers are asked again 10 s later, or sooner where
	// AddressTimeout leaves no time.
	DHCPv4 Dynamic = 1 << iota
	// SLAAC makes IPv6 addresses of the prefixes that routers advertise, and takes routers and
	// resolvers from them (RFC 4862, RFC 8106), with their preferences (RFC 4191), hop limit and
	// times of neighbour discovery. [New] waits for the first, 5 s at most; without a router the
	// stack goes on with its other addresses. There are no temporary addresses (RFC 8981), and of
	// resolvers 8 of each of 16 routers are remembered, until their lifetimes are over.
	SLAAC
	// DHCPv6 asks a DHCPv6 server for an IPv6 address and resolvers (RFC 8415) and keeps the lease.
	// Routers come from SLAAC or Gateways: DHCPv6 does not give any.
	DHCPv6
	// Auto asks for addresses by DHCPv4 and SLAAC, and by DHCPv6 if a router advertises addresses
	// or resolvers there. [New] returns once there is an address, and fails if there is none after
	// AddressTimeout; later answers are used as well. Where the network names no default router,
	// [Open] uses that of the port's Linux interface; where it names no resolvers or search
	// domains, those of /etc/resolv.conf. (The MTU is always the interface's unless NIC has one.)
	Auto
)

// takesFromLinux reports whether Linux loses frames for its own addresses to the stack.
func (c *Config) takesFromLinux() bool {
	return c.NIC.Steering.AllowNetdevMAC || c.NIC.Steering.Promiscuous
}

// has reports whether one of the protocols of x is in d.
func (d Dynamic) has(x Dynamic) bool { return d&x != 0 }

// Route describes one entry of the routing table.
type Route struct {
	// Destination is the prefix the route is for.
	Destination netip.Prefix
	// Gateway is the next hop. The zero Addr means that Destination is on the link itself.
	Gateway netip.Addr
	// MTU in bytes limits packets on this route, IP header included. 0: the link's.
	MTU int
	// Source is the address of ours that packets on this route leave from unless a socket names
	// another. The zero Addr: see [Config.Addresses].
	Source netip.Addr
	// OnLink says that Gateway is on the link although no subnet of ours has it, as the flag of
	// ip-route(8) does.
	OnLink bool
}

// RxMode is how receive queues wait for frames; package link/rdma says what each mode costs. The
// type reads and writes text, so that it can be a flag (flag.TextVar) or a field of JSON.
type RxMode = rdma.RxMode

// Filter judges packets by a list; see [NewFilter].
type Filter = filter.Filter

// FilterStatus describes a filter: its rules and how many packets each has decided.
type FilterStatus = filter.Status

// NewFilter returns a filter with the list that text is, in a part of the language of nft(8);
// empty: everything passes. The error names the line and says what to write.
func NewFilter(text string) (*Filter, error) {
	list, err := ParseFilter(text)
	if err != nil {
		return nil, err
	}
	return filter.New(list, clock.Clock{})
}

// FilterList holds a list that was read, for [Filter.Load].
type FilterList = filter.List

// ParseFilter reads a list; an empty text is none, nil.
func ParseFilter(text string) (*FilterList, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return filter.Parse(text)
}

// ParseFilterPrefix reads a prefix as rules have it; an address is the prefix of it alone.
func ParseFilterPrefix(text string) (netip.Prefix, error) { return filter.ParsePrefix(text) }

// Spread is over how many receive queues flows are spread; package link/rdma says when that
// changes. It reads and writes text, as RxMode does.
type Spread = rdma.Spread

// The ways to spread flows.
const (
	SpreadLoad = rdma.SpreadLoad // over as many queues as the load needs
	SpreadAll  = rdma.SpreadAll  // over all
)

// Backend says what [Open] puts under a stack. It reads and writes text, as RxMode does.
type Backend = uplink.Backend

// The backends; package link/uplink says what each is.
const (
	BackendAuto   = uplink.BackendAuto   // rings where NIC.Device has an mlx5 device, else packet
	BackendRings  = uplink.BackendRings  // the rings of an mlx5 device, or an error
	BackendPacket = uplink.BackendPacket // packet sockets on a netdev of any make
	BackendXDP    = uplink.BackendXDP    // AF_XDP sockets where the driver has XDP, or an error
)

// XDPOptions says how BackendXDP moves frames.
type XDPOptions = xdp.Options

// The ways that BackendXDP sends.
const (
	XDPSendSockets = xdp.SendSockets // by packet sockets: the NIC or the kernel segments
	XDPSendRings   = xdp.SendRings   // by AF_XDP
)

// The modes of receive queues.
const (
	RxAdaptive  = rdma.RxAdaptive  // look at the ring for as long as that pays, then sleep
	RxPolling   = rdma.RxPolling   // never sleep: a processor per queue
	RxInterrupt = rdma.RxInterrupt // sleep as soon as the ring is empty
)

const (
	defaultDetection = 300 * time.Millisecond
	// orphanRate says what a peer has to take of a closed connection's send buffer at least, in
	// bytes per second.
	orphanRate = 4 << 10
	// leastMaxMemory gives the least TCPOptions.MaxMemory, in bytes.
	leastMaxMemory = 64 << 10
	// defaultMaxOutage stands for a Config.Uplink.MaxOutage of 0.
	defaultMaxOutage = 2 * time.Minute
	// timeWaitSize gives roughly what netstack needs for a connection in TIME-WAIT, in bytes.
	timeWaitSize = 6 << 10
	// timeWaitShare gives the default of TCPOptions.MaxTimeWait: what takes that share of the
	// memory.
	timeWaitShare = 256
	// The default of TCPOptions.MaxTimeWait is between these.
	leastTimeWait, mostTimeWait = 4096, 65536
	// memoryShare gives the default of TCPOptions.MaxMemory: that share of the process's memory.
	memoryShare = 4
	// maxDSCP gives the largest differentiated services code point: six bits (RFC 2474 section 3).
	maxDSCP = 1<<6 - 1
)

// withDefaults returns c with every unset field that has a default filled in.
func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, c.netdevName, defaultName)
	if c.Addressing.DuplicateDetection == 0 {
		c.Addressing.DuplicateDetection = defaultDetection
	}
	if c.Addressing.Timeout == 0 {
		c.Addressing.Timeout = addrconf.DefaultTimeout
	}
	if c.Uplink.MaxOutage == 0 {
		c.Uplink.MaxOutage = defaultMaxOutage
	}
	c.renewal = cmp.Or(c.renewal, dhcp.LeastRenewal)
	c.declineWait = cmp.Or(c.declineWait, dhcp.DeclineWait)
	c.orphanRate = cmp.Or(c.orphanRate, orphanRate)
	if c.Dynamic.has(Auto) {
		c.Dynamic |= SLAAC
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.TCP = c.TCP.withDefaults()
	c.UDPBuffer = c.UDPBuffer.or(BufferRange{minBuffer, defaultUDPBuffer, defaultMaxBuffer})
	return c
}

// Validate says in one sentence what is wrong with c and how to put it right, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	if err := c.NIC.Validate(); err != nil {
		return err
	}
	if c.NIC.MTU != 0 && c.NIC.MTU < header.IPv6MinimumMTU {
		return fmt.Errorf("MTU is %d, and IPv6 needs %d: give that or more, or 0 for the port's",
			c.NIC.MTU, header.IPv6MinimumMTU)
	}
	if err := c.validateHost(); err != nil {
		return err
	}
	if err := c.validateAddresses(); err != nil {
		return err
	}
	if err := c.validateGateways(); err != nil {
		return err
	}
	if err := c.validateRoutes(); err != nil {
		return err
	}
	for _, d := range c.DNS {
		if !d.IsValid() || d.IsUnspecified() || d.IsMulticast() {
			return fmt.Errorf("DNS server %s is not a host's address; "+
				"give the resolver's IP address", d)
		}
	}
	if err := c.linkOptions().Validate(); err != nil {
		return err
	}
	if err := c.Uplink.Backend.Validate(); err != nil {
		return err
	}
	if err := validateDSCP(c.DSCP); err != nil {
		return err
	}
	if err := c.TCP.validate(); err != nil {
		return err
	}
	return c.UDPBuffer.validate("UDP buffer")
}

// HostKernel describes what [Config.Host] asks of Linux. Its types are this module's own: a program
// cannot implement it, a simulation of tests/sim does.
type HostKernel = hostmode.Kernel

// HostSockets, HostSocket, HostAcceptor and HostDatagrams describe the sockets that a [HostKernel]
// keeps for ports of the stack.
type (
	HostSockets   = hostmode.Sockets
	HostSocket    = hostmode.Socket
	HostAcceptor  = hostmode.Acceptor
	HostDatagrams = hostmode.Datagrams
)

// WithHostKernel returns c with k, which becomes the stack's, in place of Linux for [Config.Host].
// Uplink.OpenInterface may be set then: it opens a [packet.Netdev] where packet sockets of k's
// netdev would be.
func (c Config) WithHostKernel(k HostKernel) Config {
	c.hostKernel = k
	return c
}

// WithLocal returns c with all addresses of the prefixes for ours, beside Addresses: as
// "ip route add local PREFIX dev lo" has it on Linux. Listeners and sockets receive what is sent to
// any of them, can be bound to one, and answer from the one that was asked; what is sent of our own
// accord leaves from Addresses. They cost no more than one address. Routers send what is for them
// to an address of Addresses. On the link we answer ARP for all of them, so a prefix must not be
// that of the link; for IPv6 nothing is answered, as on Linux. Not with Host.
func (c Config) WithLocal(prefixes ...netip.Prefix) Config {
	c.local = append(c.local[:len(c.local):len(c.local)], prefixes...)
	return c
}

// localPrefixes are those of WithLocal.
type localPrefixes []netip.Prefix

// contains says whether a is an address of one of them.
func (l localPrefixes) contains(a tcpip.Address) bool {
	if len(l) == 0 || a.Len() == 0 {
		return false
	}
	ip := fromAddress(a)
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// validateLocal says in one sentence what is wrong with the prefixes of WithLocal.
func (c Config) validateLocal() error {
	for _, p := range c.local {
		a := p.Addr()
		switch {
		case !p.IsValid() || a.Is4In6() || p != p.Masked():
			return fmt.Errorf("local prefix %v is none; write the first address and the length, "+
				"such as 198.51.100.0/24", p)
		case a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified():
			return fmt.Errorf("local prefix %v is not of unicast addresses that are routed; "+
				"give one that routers send to us", p)
		case c.Host:
			return fmt.Errorf("local prefix %v is given with Host, whose addresses are the "+
				"netdev's; leave out one of the two", p)
		}
		for _, own := range c.Addresses {
			if own.Bits() < own.Addr().BitLen() && p.Bits() < own.Addr().BitLen() &&
				p.Overlaps(own.Masked()) {
				return fmt.Errorf("local prefix %v has addresses of the link's subnet %v, which "+
					"are other hosts'; give one that is routed to us", p, own.Masked())
			}
		}
	}
	return nil
}

func (c Config) validateAddresses() error {
	if err := c.validateLocal(); err != nil {
		return err
	}
	seen := map[netip.Addr]bool{}
	for _, p := range c.Addresses {
		if err := env.CheckAddress(p); err != nil {
			return err
		}
		if seen[p.Addr()] {
			return fmt.Errorf("address %s is given twice; remove one of them", p.Addr())
		}
		seen[p.Addr()] = true
	}
	return nil
}

func (c Config) validateGateways() error {
	var have [2]bool
	for _, g := range c.Gateways {
		if err := c.checkNextHop("gateway", g, false); err != nil {
			return err
		}
		family := 0
		if g.Is6() {
			family = 1
		}
		if have[family] {
			return fmt.Errorf("gateway %s is a second default router of its family; "+
				"use Routes for further ones", g)
		}
		have[family] = true
	}
	return nil
}

func (c Config) validateRoutes() error {
	for _, r := range c.Routes {
		if !r.Destination.IsValid() {
			return errors.New("a route's destination is empty or not a prefix; " +
				"write it as 198.51.100.0/24 or 2001:db8:1::/48")
		}
		if r.Source.IsValid() &&
			(r.Source.Is4() != r.Destination.Addr().Is4() || !c.mayOwn(r.Source)) {
			return fmt.Errorf("route to %s has source %s, which is no address of ours of its "+
				"family; give one of Addresses", r.Destination, r.Source)
		}
		if r.MTU < 0 {
			return fmt.Errorf("route to %s has MTU %d; use 0 for the link's MTU", r.Destination,
				r.MTU)
		}
		if !r.Gateway.IsValid() {
			continue
		}
		if r.Gateway.Is4() != r.Destination.Addr().Is4() {
			return fmt.Errorf("route to %s has gateway %s of the other IP family; "+
				"give one of the same family", r.Destination, r.Gateway)
		}
		if err := c.checkNextHop("gateway", r.Gateway, r.OnLink); err != nil {
			return err
		}
	}
	return nil
}

// mayOwn says whether a is one of our addresses, or may become one.
func (c Config) mayOwn(a netip.Addr) bool {
	return slices.ContainsFunc(c.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) ||
		(c.dynamic() || c.Host) && env.CheckAddress(netip.PrefixFrom(a, a.BitLen())) == nil
}

// checkNextHop refuses a router that could not be reached without a router, as Linux does; onLink
// is the flag of that name of ip-route(8).
func (c Config) checkNextHop(what string, hop netip.Addr, onLink bool) error {
	if !hop.IsValid() || hop.Is4In6() || hop.Zone() != "" ||
		env.CheckAddress(netip.PrefixFrom(hop, hop.BitLen())) != nil ||
		hop == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("%s %s is not a router's address; give its IP address on this link", what,
			hop)
	}
	if hop.IsLinkLocalUnicast() && hop.Is6() {
		return nil
	}
	for _, p := range c.Addresses {
		switch {
		case p.Addr() == hop:
			return fmt.Errorf("%s %s is our own address; give the router's", what, hop)
		case env.HasEnds(p) && hop == env.LastAddr(p):
			return fmt.Errorf("%s %s is the broadcast address of %s; give the router's", what, hop,
				p.Masked())
		}
	}
	if onLink || c.reachesOnLink(hop) {
		return nil
	}
	return fmt.Errorf("%s %s is in no subnet of ours; add an address of its subnet, correct the "+
		"prefix length, or, if it is on the link, add a route to %[2]s/%d without a gateway", what,
		hop, hop.BitLen())
}

// reachesOnLink says whether hop is on the link: in the subnet of an address or of a route without
// a gateway, or whatever it is if c's addresses of its version of IP have no subnet. Clouds do
// that.
func (c Config) reachesOnLink(hop netip.Addr) bool {
	addresses, subnets := 0, 0
	for _, p := range c.Addresses {
		switch {
		case p.Addr().Is4() != hop.Is4():
		case addrconf.LacksLength(p) || p.Contains(hop):
			return true
		case !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast():
			addresses++
			if !p.IsSingleIP() {
				subnets++
			}
		}
	}
	return addresses > 0 && subnets == 0 || slices.ContainsFunc(c.Routes, func(r Route) bool {
		return !r.Gateway.IsValid() && r.Destination.Contains(hop)
	})
}

// BufferRange bounds one direction's buffer of a TCP connection, in bytes of payload.
// Zero fields take the default named where the range is used.
type BufferRange struct {
	Min     int // what SetReadBuffer and SetWriteBuffer cannot go below
	Default int // where a new connection starts
	Max     int // how far automatic tuning and the setters can go
}

// TCPOptions holds the options of TCP. The zero value is what measured best.
type TCPOptions struct {
	// CongestionControl is "cubic" (RFC 9438, the default) or "reno" (RFC 5681).
	CongestionControl string
	// MaxMemory bounds the bytes that all connections together hold, not read or not acknowledged
	// (tcp_mem of Linux). From two thirds of it buffers do not grow and new connections begin with
	// small ones; at the limit writes wait, and data for connections that do not read is dropped,
	// for the peer to send it again. [Stack.Health] says so (reporter memory), and
	// [Stack.MemoryStats] counts it. At least 64 KiB. Default: a quarter of the memory that the
	// process may use, as of the machine, its cgroups and GOMEMLIMIT.
	MaxMemory int64
	// SendBuffer limits unacknowledged data per connection. Default 4 KiB, 1 MiB, 8 MiB: a writer
	// goes on once half of it is free, so that 4 MiB are always on the way.
	SendBuffer BufferRange
	// ReceiveBuffer limits unread data per connection; its Max decides the window scale offered.
	// Default 4 KiB, 1 MiB, 8 MiB: 8 MiB carries 640 Mbit/s over 100 ms. Buffers grow with the
	// measured rate, up to Max: not at all where Default is as much.
	ReceiveBuffer BufferRange

	// Workers says how many goroutines of netstack's handle what TCP receives; a connection keeps
	// to one of them. At most as many as GOMAXPROCS is when the stack is made. Default: half as
	// many, one at least: with more they contend for the locks of listeners and busy connections.
	Workers int

	// Backlog is that of listen(2) on Linux: as many established connections and one more wait for
	// Accept; further SYNs are dropped, so that clients retry. With as many handshakes under way,
	// SYN cookies are used. Default 2048: of
	// SYNs that nobody follows up, the stack then holds 20 MiB at most.
	Backlog int
	// KeepAlive configures probes on accepted and dialled connections, if Enable is set; zero
	// fields mean 15 s idle, 15 s between probes, 9 probes, as package net has it. Nil: these.
	KeepAlive *net.KeepAliveConfig

	// ACKDelay says how long an acknowledgement may wait for data to ride on (RFC 1122 section
	// 4.2.3.2): a server then sends one packet per request instead of two. Default that of
	// [rdma.ACKOptions], 5 ms, and 40 ms where data mostly comes later. Negative: every segment is
	// acknowledged at once, as netstack by itself does.
	ACKDelay time.Duration
	// MaxTimeWait says how many connections may be in TIME-WAIT (tcp_max_tw_buckets of Linux), of
	// about 6 KiB each. Those that come when there are as many do not stay. Default: what takes
	// 1/256 of the memory that the process may use, 4096 to 65536. Negative: none.
	MaxTimeWait int
	// OrphanTimeout says how long a closed connection keeps unsent data while the peer acknowledges
	// nothing, because it is silent or its window is zero; then it is reset. Default 100 s, the
	// time of Linux's tcp_orphan_retries of 8. A peer that acknowledges a little now and then has
	// this time in total, and a second more for each 4 KiB of the connection's send buffer.
	OrphanTimeout time.Duration

	// Netstack sets further options of netstack's TCP as it knows them (package tcpip), such as
	// TCPSACKEnabled, TCPRecovery (0: no RACK, so that a path that reorders is up to five times
	// slower), TCPAlwaysUseSynCookies, TCPMinRTOOption (default 120 ms: longer than other systems
	// delay an acknowledgement at a short round trip, shorter than the 200 ms of Linux; of a
	// connection that writes more than its window the round trip is added),
	// TCPMaxRetriesOption (15), TCPTimeWaitTimeoutOption and TCPLingerTimeoutOption (60 s),
	// TCPSynRetriesOption (how many times a SYN is repeated, with doubling intervals from 1 s,
	// before a dial fails with ETIMEDOUT: default and at most 6, 127 s), TCPTimeWaitReuseOption:
	// TCPTimeWaitReuseGlobal lets a dial take over a port pair in TIME-WAIT that is older than 1 s,
	// when timestamps make that safe (RFC 6191), for clients that dial thousands of times a minute;
	// default with Config.Host.
	Netstack []tcpip.SettableTransportProtocolOption
}

const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 9
	maxACKDelay       = 400 * time.Millisecond
	minRTO            = 120 * time.Millisecond
	maxRetries        = 15
	defaultBacklog    = 2048
	minBuffer         = 4 << 10
	defaultUDPBuffer  = 4 << 20
	defaultMaxBuffer  = 16 << 20
)

func (o TCPOptions) withDefaults() TCPOptions {
	if o.CongestionControl == "" {
		o.CongestionControl = "cubic"
	}
	o.SendBuffer = o.SendBuffer.or(BufferRange{minBuffer, 1 << 20, 8 << 20})
	o.ReceiveBuffer = o.ReceiveBuffer.or(BufferRange{minBuffer, 1 << 20, 8 << 20})
	o.Backlog = cmp.Or(o.Backlog, defaultBacklog)
	k := net.KeepAliveConfig{Enable: true}
	if o.KeepAlive != nil {
		k = *o.KeepAlive
	}
	k.Idle = cmp.Or(k.Idle, keepAliveIdle)
	k.Interval = cmp.Or(k.Interval, keepAliveInterval)
	k.Count = cmp.Or(k.Count, keepAliveCount)
	o.KeepAlive = &k
	if o.MaxMemory == 0 || o.MaxTimeWait == 0 {
		available := memlimit.Available()
		o.MaxMemory = cmp.Or(o.MaxMemory, defaultMaxMemory(available))
		o.MaxTimeWait = cmp.Or(o.MaxTimeWait, defaultMaxTimeWait(available))
	}
	o.OrphanTimeout = cmp.Or(o.OrphanTimeout, 100*time.Second)
	o.Workers = cmp.Or(o.Workers, defaultWorkers(runtime.GOMAXPROCS(0)))
	return o
}

func (r BufferRange) or(d BufferRange) BufferRange {
	r.Max = cmp.Or(r.Max, max(d.Max, r.Default))
	r.Default = cmp.Or(r.Default, min(d.Default, r.Max))
	r.Min = cmp.Or(r.Min, min(d.Min, r.Default))
	return r
}

func (o TCPOptions) validate() error {
	if o.CongestionControl != "cubic" && o.CongestionControl != "reno" {
		return fmt.Errorf("congestion control %q is not supported; use \"cubic\" or \"reno\"",
			o.CongestionControl)
	}
	if err := o.SendBuffer.validate("TCP send buffer"); err != nil {
		return err
	}
	if err := o.ReceiveBuffer.validate("TCP receive buffer"); err != nil {
		return err
	}
	if o.Backlog < 0 {
		return fmt.Errorf("backlog %d is negative; use 0 for the default of %d",
			o.Backlog, defaultBacklog)
	}
	if o.Workers < 0 {
		return fmt.Errorf("%d TCP workers are less than none; use 0 for as many as pay", o.Workers)
	}
	if o.MaxMemory < leastMaxMemory {
		return fmt.Errorf("TCP MaxMemory of %d bytes is too little; give at least %d, or 0 for a "+
			"quarter of the memory", o.MaxMemory, leastMaxMemory)
	}
	if o.ACKDelay > maxACKDelay {
		return fmt.Errorf("ACK delay %s is longer than TCP allows; give at most %s", o.ACKDelay,
			maxACKDelay)
	}
	if o.OrphanTimeout < 0 {
		return errors.New("TCP's OrphanTimeout cannot be negative; use 0 for the default")
	}
	return nil
}

func (r BufferRange) validate(what string) error {
	if r.Min < 1 || r.Default < r.Min || r.Max < r.Default {
		return fmt.Errorf("%s range %d, %d, %d is not ascending; "+
			"give Min <= Default <= Max in bytes", what, r.Min, r.Default, r.Max)
	}
	return nil
}

// ParseAddress reads one address of ours as a user writes it, address and prefix length:
// "192.0.2.10/24" or "2001:db8::10/64". Without a length it is for [Open] to find, see
// [Config.Addresses]. The error is one sentence that says how to write it.
func ParseAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, bare := netip.ParseAddr(s); bare == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, -1), nil
	}
	if err != nil {
		return netip.Prefix{},
			fmt.Errorf("address %q is not of the form 192.0.2.10/24 or 2001:db8::10/64", s)
	}
	return p, env.CheckAddress(p)
}

// dynamic says whether c asks the network for addresses.
func (c Config) dynamic() bool { return c.Dynamic != 0 }

func (c *Config) linkOptions() rdma.Options {
	return rdma.Options{RxMode: c.Uplink.RxMode, Spread: c.Uplink.Spread,
		RxLimit: c.Uplink.RxLimit, Filter: c.Filter, Clock: c.Clock, Random: c.Random}
}

// driverConfig returns how the device is opened.
func (c *Config) driverConfig() dv.Config {
	d := dv.Config{NIC: c.NIC, TakesOver: c.Predecessor != nil, Logger: c.Logger, Clock: c.Clock,
		Random: c.Random, ActiveRxQueues: c.linkOptions().ActiveRxQueues(c.NIC.RxQueues)}
	if m := rdma.SendMemoryUsed(); rdma.SendMemoryPoisoned || m.Bytes > 0 || m.Err != nil {
		d = d.WithSendMemory(rdma.SendMemory)
	}
	if c.Driver != nil {
		c.Driver(&d)
	}
	return d
}

// checkDriver refuses what Driver has changed although other fields of c decide it.
func (c *Config) checkDriver(d *dv.Config) error {
	if d.HostMode || d.TakesOver != (c.Predecessor != nil) {
		return errors.New("field Driver sets HostMode or TakesOver, which the stack decides: " +
			"use Host or Predecessor of stack.Config instead")
	}
	return nil
}

// validateHost refuses what the host decides.
func (c Config) validateHost() error {
	switch {
	case !c.Host:
		return nil
	case len(c.Addresses) > 0 || c.dynamic():
		return errors.New("with Host the addresses are the netdev's; leave out all others")
	case len(c.Gateways) > 0 || len(c.Routes) > 0:
		return errors.New("with Host the routes are the netdev's; leave out Gateways and Routes")
	case c.NIC.MAC != nil || c.NIC.Steering.AllowNetdevMAC || c.NIC.Steering.Promiscuous:
		return errors.New("with Host the MAC is the netdev's; " +
			"leave out MAC, AllowNetdevMAC and Promiscuous")
	case c.NIC.VLAN != 0:
		return fmt.Errorf("VLAN %d: the host's addresses in a VLAN are on a netdev of its own; "+
			"name that as NIC.Device", c.NIC.VLAN)
	case c.NIC.Model.Kernel != nil && c.NIC.Model.Facts.Netdev == "":
		return errors.New("with Host a netdev of this machine is needed: name that of NIC.Model " +
			"in NIC.Model.Facts.Netdev")
	case c.Uplink.OpenInterface != nil && c.hostKernel == nil:
		return errors.New("with Host packet sockets of the netdev are needed; leave out " +
			"OpenInterface")
	case c.Uplink.Fallback != "":
		return errors.New("with Host packet sockets of the netdev carry the frames while its " +
			"device is away; leave out Fallback")
	}
	return nil
}

// defaultWorkers returns the default of TCPOptions.Workers with that many processors.
func defaultWorkers(processors int) int { return max(1, processors/2) }

// defaultMaxMemory returns the default of TCPOptions.MaxMemory where that much memory is available.
func defaultMaxMemory(available int64) int64 { return max(available/memoryShare, leastMaxMemory) }

// defaultMaxTimeWait returns the default of TCPOptions.MaxTimeWait.
func defaultMaxTimeWait(available int64) int {
	return int(min(max(available/timeWaitShare/timeWaitSize, leastTimeWait), mostTimeWait))
}

// Predecessor describes a process whose place this one is about to take.
type Predecessor struct {
	// PID names its process.
	PID int
	// MAC and Addresses are what its stack has.
	MAC       net.HardwareAddr
	Addresses []netip.Prefix

	met *handover.Predecessor
}

// Close leaves the predecessor alone, unless a stack has taken over from it. It may be called
// again.
func (p *Predecessor) Close() error { return p.met.Close() }

func validateDSCP(dscp uint8) error {
	if dscp > maxDSCP {
		return fmt.Errorf("DSCP is %d, code points are 0 to %d: "+
			"46 is expedited forwarding, 0 best effort", dscp, maxDSCP)
	}
	return nil
}
