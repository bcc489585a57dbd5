package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
)

const serveDNSHelp = `Usage: rdma-netstack serve dns --device NAME --address CIDR [flags]

Answers DNS queries over UDP and TCP from a slice of an RDMA port. The slice receives the frames of
its own MAC address; Linux keeps the port's network interface and all other frames.

  rdma-netstack serve dns --device sim --zone example.zone
  rdma-netstack serve dns --device mlx5_0 --address 192.0.2.10/24 --forward 192.0.2.53

  --listen ADDR:PORT  where to listen, UDP and TCP (default :53, on every address). Repeat the flag
                      to listen in more places. Port 0 takes a free one, which the start-up line
                      names
  --zone FILE         zone file (RFC 1035) to answer from. Repeat the flag for more zones
  --forward ADDR      resolver for all other names, port 53 unless ADDR:PORT. It is queried from
                      the slice. Repeat the flag for a second one, which is queried when the first
                      fails. Without a resolver, queries for other names are refused
  --response-rate N   UDP answers per second to each IPv4 /24 and IPv6 /56 (default 200; 0: no
                      limit). Above it every second query gets an empty, truncated answer, which
                      makes a resolver retry over TCP; the others get none
` + serveFlagsHelp

func serveDNSCommand() command {
	return command{name: "serve dns", line: "DNS server: zone files and forwarding",
		help: serveDNSHelp, run: serveDNS}
}

// dnsFlags are those of serve dns.
type dnsFlags struct {
	serveFlags
	zones   []string
	forward []string // resolvers, ADDRESS:PORT
	rate    int      // answers per second and prefix, 0 for no limit
}

// parseDNS reads the command line of serve dns.
func parseDNS(args []string) (*dnsFlags, error) {
	f, fs := &dnsFlags{}, newFlags()
	f.define(fs)
	stringList(fs, "zone", &f.zones)
	fs.Func("forward", "", func(s string) error {
		addr, err := resolver(s)
		f.forward = append(f.forward, addr)
		return err
	})
	fs.IntVar(&f.rate, "response-rate", dnsd.DefaultResponseRate, "")
	if err := f.parse(fs, args, ":53"); err != nil {
		return nil, err
	}
	if f.rate < 0 {
		return nil, usageError{fmt.Errorf("--response-rate %d: want 0 or more answers per second",
			f.rate)}
	}
	if len(f.zones)+len(f.forward) == 0 {
		return nil,
			usageError{errors.New(
				"nothing to answer from: give --zone FILE, --forward ADDR or both")}
	}
	return f, nil
}

func serveDNS(ctx context.Context, args []string, out streams) (err error) {
	f, err := parseDNS(args)
	if err != nil {
		return err
	}
	log := f.log.logger(out.stderr)
	var s *slice
	cfg := dnsd.Config{
		Logger: log, ResponseRate: cmp.Or(f.rate, -1), Forward: f.forward,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.stack.DialContext(ctx, network, address)
		},
	}
	for _, file := range f.zones {
		cfg.Zones = append(cfg.Zones, dnsd.Zone{File: file})
	}
	app, err := dnsd.New(cfg)
	if err != nil {
		return err
	}
	if s, err = openSlice(ctx, f.serveFlags, log); err != nil {
		return err
	}
	defer func() { err = s.closeAfter(err) }()
	serve, err := f.listenDNS(s, app)
	if err != nil {
		return err
	}
	f.confined.readsFiles(f.zones)
	at := f.reachable(s)
	try := fmt.Sprintf("dig @%s -p %d %s SOA", at.Addr(), at.Port(), "example")
	if err := f.announce(out, s, "DNS", try); err != nil {
		return err
	}
	return serveUntilDone(ctx, app, s.ending(ctx, &f.serveFlags, log, answersOnLinux(cfg)),
		serve...)
}

// answersOnLinux returns a server of the same answers, which asks others by Linux.
func answersOnLinux(cfg dnsd.Config) onLinux {
	return func() (kernelApp, error) {
		cfg.Dial = new(net.Dialer).DialContext
		app, err := dnsd.New(cfg)
		if err != nil {
			return kernelApp{}, err
		}
		return kernelApp{app,
			func(ln net.Listener) error { return notShutDown(app.ServeTCP(ln)) },
			func(pc net.PacketConn) error { return notShutDown(app.ServeUDP(pc)) }}, nil
	}
}

// listenDNS opens a TCP and a UDP socket on the same port for each listen address. It returns their
// serving functions. The stack closes the sockets.
func (f *dnsFlags) listenDNS(s *slice, app *dnsd.Server) (serve []func() error, err error) {
	for i, at := range f.listen {
		ln, err := s.stack.Listen("tcp", at)
		if err != nil {
			return nil, listenError("DNS over TCP", at, err)
		}
		at = withBoundPort(at, ln.Addr())
		f.listen[i] = at
		pc, err := s.stack.ListenPacket("udp", at)
		if err != nil {
			return nil, listenError("DNS over UDP", at, err)
		}
		serve = append(serve,
			func() error { return notShutDown(app.ServeUDP(pc)) },
			func() error { return notShutDown(app.ServeTCP(ln)) })
	}
	return serve, nil
}

// notShutDown is err, or nil if a socket began to serve after a shutdown, which a signal right
// after the start brings about: it is served to its end, as the others are.
func notShutDown(err error) error {
	if errors.Is(err, dnsd.ErrClosed) {
		return nil
	}
	return err
}

// resolver reads where to forward to; port 53 unless said otherwise.
func resolver(s string) (string, error) {
	at, err := netip.ParseAddrPort(s)
	if a, err := netip.ParseAddr(s); err == nil {
		return forwardTo(netip.AddrPortFrom(a, 53))
	}
	if err != nil || at.Port() == 0 {
		return "", errors.New(
			"want the resolver's IP address, such as 192.0.2.53, 192.0.2.53:5353 or " +
				"[2001:db8::53]:5353",
		)
	}
	return forwardTo(at)
}

// forwardTo refuses addresses that no resolver can have.
func forwardTo(at netip.AddrPort) (string, error) {
	a := at.Addr().Unmap()
	if a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return "", errors.New("not the address of one resolver; write that, such as 192.0.2.53")
	}
	return at.String(), nil
}
