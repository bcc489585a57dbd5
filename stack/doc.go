// Package stack gives ordinary Go servers a net.Listener, a net.PacketConn and a net.Conn whose
// packets never enter the Linux kernel.
//
//	st, err := stack.Open(ctx, stack.Config{...})     // a NIC's rings, see package dv
//	ln, err := st.Listen("tcp", ":80")
//	http.Serve(ln, handler)
//
// TCP, UDP, ARP, NDP and ICMP are gVisor's netstack, running in this process. This package is the
// part between netstack and package net: it keeps the promises a server relies on.
//
//   - Types: [TCPListener], [TCPConn] and [UDPConn] have the methods of their namesakes in package
//     net that servers type-assert (half-close, keep-alive, linger, ReadMsgUDP, netip variants).
//     They have no SyscallConn: its presence tells a library that there is a kernel socket, and
//     libraries give up on a connection whose SyscallConn fails (quic-go, go-redis and the MySQL
//     driver do). Without the method they take their portable path.
//   - Errors: always a *net.OpError, with the errno of the host stack inside, so that errors.Is
//     works for net.ErrClosed, os.ErrDeadlineExceeded, ECONNREFUSED, ECONNRESET, EPIPE, EADDRINUSE
//     and so on. io.EOF means that the peer has closed, and nothing else.
//   - Addresses: a wildcard listener is dual-stack and prints as "[::]:80"; "tcp4" and "tcp6"
//     restrict; a datagram that was sent to our second address is answered from our second address.
//     Addresses are static or asked for (DHCP, DHCPv6, SLAAC), never taken into use while another
//     host has them, and announced at start, when the device's link comes up again, and when
//     another host claims one.
//   - Closing: Close wakes all blocked callers, of a connection, a listener or the whole [Stack].
//
// # Configuration
//
// The zero [Config] is useful, and most programs set three fields: NIC.Device, Addresses and
// Gateways. The others are grouped by what they decide:
//
//   - [dv.NIC] names the port, its queues, MAC, VLAN and MTU; Driver changes what else package dv
//     can do, such as formats of descriptors.
//   - [UplinkOptions] says what carries the frames (rings, packet sockets), how it is waited for,
//     and what happens when the device fails or is removed.
//   - [AddressOptions] says how addresses are obtained, checked and announced; Dynamic asks for
//     them.
//   - [TCPOptions] and UDPBuffer bound memory and set TCP's defaults.
//
// Each option is checked by [Config.Validate], which [Open] and [New] call, and which returns one
// sentence with the cure.
//
// # Groups
//
// [Stack.ListenMulticastUDP], [Stack.ListenPacket] with a group's address, and [UDPConn.JoinGroup]
// do what net and golang.org/x/net do on a host with one interface. The device copies all multicast
// to us, and netstack drops the datagrams of groups that no socket has joined. The PacketConn types
// of golang.org/x/net/ipv4 and ipv6 work on descriptors: given a conn of ours, their methods fail
// ("invalid connection"). What they do is methods of [UDPConn], most with the same name and
// signature:
//
//	JoinGroup, LeaveGroup               the same, with a nil interface
//	SetMulticastInterface               not needed: there is one
//	SetMulticastTTL, SetMulticastHopLimit       SetMulticastTTL, for either version of IP
//	SetMulticastLoopback                the same
//	SetTTL, SetHopLimit                 SetTTL
//	SetTOS, SetTrafficClass             SetTrafficClass
//	SetControlMessage(FlagDst, true)    SetControl, or SetReceive; ControlMessage.Parse of x/net
//	                                    reads the OOB of ReadMsgUDP and ReadBatch
//	ReadBatch, WriteBatch               the same; flags must be 0
//	JoinSourceSpecificGroup and others of sources       nothing
//
// # How a call travels
//
// A conn is a netstack endpoint plus two I/O sides, reading and writing. A side has a mutex that
// serialises its operations (as net's does), a deadline, and a channel of capacity one into which
// netstack, the deadline's timer and Close put a token that means "try again". An operation tries
// the endpoint, and parks on that channel when the endpoint would block. The side is registered
// with the endpoint's wait queue once, when the conn is made, so waiting allocates nothing.
//
// UDP sends past the endpoint: a conn caches the route to each peer and writes the datagram
// straight to it, which is four times faster than having netstack look up route and neighbour for
// every datagram. Most of what it receives comes past the endpoint, too: the link delivers it to
// the conn's own receive queue (udp_receive.go), and wakes a reader once per batch.
//
// The link below is any gVisor LinkEndpoint ([New]) or an RDMA device's packet queues ([Open]).
//
// # Locks
//
// A goroutine that holds one of these locks takes only locks further down. Netstack takes those
// marked so with its own locks held; whoever holds one of them calls nothing of netstack that
// locks, unless the line says what. TestLockOrder in folder tests compares the code with this list.
//
//	packetShard.mu, socketPacing.turn
//	ioSide.mu, listenerTable.mu, lifetime.live, handover.Handover.pausing, UDPConn.groups
//	handover.taking.mu, hostmode.Host.following, linkMTU.mu, hostmode.Host.mu
//	addrconf.Manager.changing, addrconf.autoconf.applying, addrconf.autoconf.mu
//	addrconf.memberships.telling
//	addrconf.memberships.mu  netstack's callbacks take it
//	addrconf.raEvents.mu  netstack's callbacks take it
//	neighbours.Table.mu  netstack's callbacks take it
//	neighbours.Table.known, uplink.bond.mu, failover.Link.mu, tcpMemory.telling, health.mu
//	tcpMemory.mu
//	timeWaits.mu  netstack's callbacks take it, and then that of TCP's options
//	orphans.mu, slowStarts.mu, openConns.mu, dhcp.linkUpWaiters.mu, icmpErrors.mu, pathMTUs.mu
//	routeCache.mu, replySources.mu, udpPortTable.mu, udpRxQueue.mu, sentStamps.mu, deadline.mu
//	kernelQueue.mu
//	handover.Inherited.mu, handover.heldFrames.mu, hostmode.ways.mu
//	backing.Socket.mu
//	backing.Filters.mu, backing.pacer.mu
//	hostnet.Kernel.mu, addrlock.Locks.mu, resolver.resolvConf.checking
//	resolver.hostsFile.mu, resolver.orderFile.mu, resolver.flights.mu, Filter.mu
package stack
