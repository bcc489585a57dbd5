package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
)

func serveDNSCommand(out streams) *cobra.Command {
	f := dnsFlags{rate: dnsd.DefaultResponseRate}
	cmd := &cobra.Command{Use: "dns --device NAME --address CIDR", Args: noWords,
		Short: "DNS server: zone files and forwarding",
		Long: `Answers DNS queries over UDP and TCP from a slice of an RDMA port. The slice receives the frames of
its own MAC address; Linux keeps the port's network interface and all other frames.`,
		Example: `  rdma-netstack serve dns --device sim --zone example.zone
  rdma-netstack serve dns --device mlx5_0 --address 192.0.2.10/24 --forward 192.0.2.53`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd.Flags().Changed); err != nil {
				return err
			}
			return serveDNS(cmd.Context(), &f, out)
		}}
	addFlags(cmd, "The server",
		opt("listen", "ADDR:PORT", &f.listen, "where to listen, UDP and TCP (default :53, on "+
			"every address). Repeat the flag to listen in more places. Port 0 takes a free one, "+
			"which the start-up line names"),
		opt("zone", "FILE", &f.zones, "zone file (RFC 1035) to answer from. Repeat the flag for "+
			"more zones"),
		opt("forward", "ADDR", func(s string) error {
			addr, err := resolver(s)
			f.forward = append(f.forward, addr)
			return err
		}, "resolver for all other names, port 53 unless ADDR:PORT. It is queried from the slice. "+
			"Repeat the flag for a second one, which is queried when the first fails. Without a "+
			"resolver, queries for other names are refused"),
		opt("response-rate", "N", &f.rate, "UDP answers per second to each IPv4 /24 and IPv6 "+
			"/56; 0: no limit. Above it every second query gets an empty, truncated answer, which "+
			"makes a resolver retry over TCP; the others get none"))
	f.addTo(cmd)
	return cmd
}

// dnsFlags holds the flags of serve dns.
type dnsFlags struct {
	serveFlags
	zones   []string
	forward []string // resolvers, ADDRESS:PORT
	rate    int      // answers per second and prefix, 0 for no limit
}

// complete checks the flags.
func (f *dnsFlags) complete(given func(flag string) bool) error {
	if err := f.serveFlags.complete(":53", given); err != nil {
		return err
	}
	if f.rate < 0 {
		return usageError{fmt.Errorf("--response-rate %d: want 0 or more answers per second",
			f.rate)}
	}
	if len(f.zones)+len(f.forward) == 0 {
		return usageError{errors.New(
			"nothing to answer from: give --zone FILE, --forward ADDR or both")}
	}
	return nil
}

func serveDNS(ctx context.Context, f *dnsFlags, out streams) (err error) {
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
		ln, err := s.listenTCP(at)
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

// notShutDown returns err, or nil if a socket began to serve after a shutdown, which a signal right
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
