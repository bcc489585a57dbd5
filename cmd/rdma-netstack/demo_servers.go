package main

import (
	"context"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
)

// demoZone gives the zone of the demo's DNS server.
const demoZone = `$ORIGIN example.
$TTL 60
@        IN SOA   ns hostmaster 1 3600 600 86400 60
@        IN NS    ns
ns       IN A     192.0.2.10
ns       IN AAAA  2001:db8::10
www      IN A     192.0.2.10
www      IN AAAA  2001:db8::10
netdev   IN A     192.0.2.20
netdev   IN AAAA  2001:db8::20
`

// startServers starts the same web server twice, on the slice and on a kernel socket of the
// netdev's namespace, and a DNS server on the slice.
func (w *world) startServers(context.Context) error {
	onSlice, err := w.stack.Listen("tcp", ":80")
	if err != nil {
		return fmt.Errorf("listen for HTTP on the slice: %w", err)
	}
	if err := w.serveHTTP(httpd.Config{DebugEndpoints: true,
		Status: func() any { return status(w.stack, w.nic) }}, onSlice); err != nil {
		return err
	}
	onNetdev, err := w.host.Listen("tcp", ":80")
	if err != nil {
		return fmt.Errorf("listen for HTTP on the netdev: %w", err)
	}
	if err := w.serveHTTP(httpd.Config{DebugEndpoints: true}, onNetdev); err != nil {
		return err
	}
	return w.serveDNS()
}

func (w *world) serveHTTP(cfg httpd.Config, ln net.Listener) error {
	app, err := httpd.New(cfg)
	if err != nil {
		return err
	}
	w.shutdown(app)
	go app.Serve(ln)
	return nil
}

func (w *world) serveDNS() error {
	app, err := dnsd.New(dnsd.Config{Zones: []dnsd.Zone{{File: "demo.zone", Text: demoZone}}})
	if err != nil {
		return err
	}
	w.shutdown(app)
	pc, err := w.stack.ListenPacket("udp", ":53")
	if err != nil {
		return fmt.Errorf("listen for DNS on the slice: %w", err)
	}
	go app.ServeUDP(pc)
	ln, err := w.stack.Listen("tcp", ":53")
	if err != nil {
		return fmt.Errorf("listen for DNS on the slice: %w", err)
	}
	go app.ServeTCP(ln)
	return nil
}
