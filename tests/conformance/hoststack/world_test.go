//go:build linux

package hoststack

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// world is a server host and a client host that can reach each other.
type world struct {
	name             string
	server, client   sockets
	server4, client4 netip.Addr
	server6, client6 netip.Addr
	alias4           netip.Addr // the server's second IPv4 address
	sent             *onCable   // by the server; nil on loopback
	// datagrams counts what the server's stack has delivered to sockets; nil: it is a kernel's
	datagrams func() uint64
	// deaf listens with a backlog of 1, fills it and returns the address; see run.deaf
	deaf  func(*run) string
	roles interface{ Replace(string) string }
}

// kernelWorld is the machine's loopback, server and client in one.
func kernelWorld(*testing.T) *world {
	w := &world{
		name:   "kernel",
		server: kernel{}, client: kernel{},
		server4: netip.MustParseAddr("127.0.0.1"), client4: netip.MustParseAddr("127.0.0.1"),
		server6: netip.IPv6Loopback(), client6: netip.IPv6Loopback(),
		alias4: netip.MustParseAddr("127.0.0.2"), deaf: deafKernel,
	}
	w.roles = roles(w)
	return w
}

// stackWorld is two stacks on a cable.
func stackWorld(t *testing.T) *world {
	w := pairWorld("stack")
	alias := func(c *stack.Config) {
		c.Addresses = append(c.Addresses,
			netip.PrefixFrom(w.alias4, 24))
	}
	server, client := netpair.New(t, netpair.Faults{Tap: w.sent.tap}, netpair.Server(alias))
	netpair.Acquaint(t, server, client)
	netpair.Acquaint(t, client, server)
	if err := client.Netstack().SetPortRange(firstClientPort, lastClientPort); err != nil {
		t.Fatal(err)
	}
	w.server, w.client, w.deaf = netstack{server}, netstack{client}, deafStack
	w.datagrams = datagramsOf(server)
	return w
}

// datagramsOf returns what counts the datagrams that a stack has delivered to its sockets.
func datagramsOf(st *stack.Stack) func() uint64 {
	return func() uint64 { return st.Stats().UDPReceived }
}

// run is the argument of a behaviour: a world, notes, and helpers that end the behaviour when a
// call that it depends on fails.
type run struct {
	*testing.T
	*world
	notes
	differs bool // by design: an error that it depends on is noted
}

// patience is the time limit for expected events, brief is how long a test watches for an event
// that must not happen, and ample is enough for a step that usually takes no time, also when all
// processors are busy.
const (
	patience = 30 * time.Second
	brief    = 50 * time.Millisecond
	ample    = time.Second
)

// must ends the behaviour if err is not nil.
func (r *run) must(err error) {
	r.Helper()
	switch {
	case err == nil:
	case r.differs:
		r.Err("cannot go on", err)
		panic(cannotGoOn{})
	default:
		r.Fatalf("%s: %v", r.world.name, err)
	}
}

// closed closes c when the behaviour ends.
func (r *run) closed(c io.Closer) { r.Cleanup(func() { c.Close() }) }

// soon is a deadline that passes only when something hangs.
func soon() time.Time { return time.Now().Add(patience) }

// at joins an address and the port of a.
func at(ip netip.Addr, a net.Addr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return net.JoinHostPort(ip.String(), p)
}

// listen opens a TCP listener on the server whose port is named "port".
func (r *run) listen(network string, ip string) tcpListener {
	r.Helper()
	l, err := r.server.Listen(network, net.JoinHostPort(ip, "0"))
	r.must(err)
	r.closed(l)
	r.Port("port", l.Addr())
	return l.(tcpListener)
}

// dial connects the client to l on its IPv4 address.
func (r *run) dial(l net.Listener) tcpConn {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := r.client.DialContext(ctx, "tcp", at(r.server4, l.Addr()))
	r.must(err)
	r.closed(c)
	return c.(tcpConn)
}

// portOf returns the port of an address as notes have it.
func portOf(a net.Addr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return p
}

// pair is a connection: the client's end and the server's.
func (r *run) pair() (client, server tcpConn) {
	r.Helper()
	l := r.listen("tcp4", r.server4.String())
	client = r.dial(l)
	c, err := l.Accept()
	r.must(err)
	r.closed(c)
	r.must(client.SetDeadline(soon()))
	r.must(c.SetDeadline(soon()))
	return client, c.(tcpConn)
}

// packet opens a UDP socket on the server whose port is named "port".
func (r *run) packet(network, ip string) udpConn {
	r.Helper()
	p, err := r.server.ListenPacket(network, net.JoinHostPort(ip, "0"))
	r.must(err)
	r.closed(p)
	r.Port("port", p.LocalAddr())
	r.must(p.SetDeadline(soon()))
	return p.(udpConn)
}

// connected is a UDP socket of the client, connected to p.
func (r *run) connected(p net.PacketConn) udpConn {
	r.Helper()
	c, err := r.client.DialContext(context.Background(), "udp", at(r.server4, p.LocalAddr()))
	r.must(err)
	r.closed(c)
	r.must(c.SetDeadline(soon()))
	return c.(udpConn)
}

// free is a UDP socket of the client that is not connected.
func (r *run) free(network, ip string) udpConn {
	r.Helper()
	p, err := r.client.ListenPacket(network, net.JoinHostPort(ip, "0"))
	r.must(err)
	r.closed(p)
	if r.names[portOf(p.LocalAddr())] != "" { // on one host a socket of the other version of IP
		return r.free(network, ip)
	}
	r.must(p.SetDeadline(soon()))
	return p.(udpConn)
}

// write sends all of s.
func (r *run) write(w io.Writer, s string) {
	r.Helper()
	_, err := io.WriteString(w, s)
	r.must(err)
}

// noteRead reads once and notes the bytes and the error.
func (r *run) noteRead(name string, c io.Reader) {
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	r.Text(name+" bytes", string(buf[:n]))
	r.Err(name, err)
}

// readFull reads n bytes and notes them.
func (r *run) readFull(name string, c io.Reader, n int) {
	buf := make([]byte, n)
	_, err := io.ReadFull(c, buf)
	r.Text(name+" bytes", string(buf))
	r.Err(name, err)
}

// within notes whether f returns in time; if not, f continues in the background.
func (r *run) within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// until repeats f until it returns true; there is no event for what f waits for.
func (r *run) until(what string, f func() bool) {
	r.Helper()
	for end := soon(); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("%s: %s did not happen", r.world.name, what)
		}
	}
}
