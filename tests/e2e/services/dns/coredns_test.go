package dns

import (
	"io"
	"log"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/tls"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

// TestCoreDNS passes listeners to methods of CoreDNS's server. Only a program built by "make
// coredns" opens its sockets itself, from the addresses in its Corefile.
func TestCoreDNS(t *testing.T) {
	world.Module(t, "github.com/coredns/coredns")
	log.SetOutput(io.Discard)
	world.Each(t, func(t *testing.T, w *world.World) {
		id := world.NewIdentity(t)
		clear, err := dnsserver.NewServer("dns://:53",
			[]*dnsserver.Config{site(t, "dns", "53",
				map[string]string{"file": "file " + zoneFile + " example.org", "cache": "cache"})})
		if err != nil {
			t.Fatal(err)
		}
		secret, err := dnsserver.NewServerTLS("tls://:853",
			[]*dnsserver.Config{site(t, "tls", "853", map[string]string{
				"file": "file " + zoneFile + " example.org", "tls": "tls " +
					id.Cert + " " + id.Key})})
		if err != nil {
			t.Fatal(err)
		}
		pc, ln, dot := w.ListenPacket(t, 53), w.Listen(t, 53), w.Listen(t, 853)
		go clear.ServePacket(pc)
		go clear.Serve(ln)
		go secret.Serve(dot)
		t.Cleanup(func() {
			clear.Stop()
			secret.Stop()
		})
		questions(t, w, id)
		t.Run("nmap", func(t *testing.T) { w.Nmap(t, "53", `53/tcp\s+open\s+domain`) })
	})
}

// site is a server block with these plugins, each set up by its own line of a Corefile.
func site(t *testing.T, transport, port string, plugins map[string]string) *dnsserver.Config {
	t.Helper()
	c := caddy.NewTestController("dns", "")
	config := dnsserver.GetConfig(c)
	config.Zone, config.Transport, config.Port = "example.org.", transport, port
	// The default of 3 s is also how soon a connection has to end for nmap to name no service.
	config.ReadTimeout = 20 * time.Second
	for _, name := range dnsserver.Directives { // in the order in which they run
		line, wanted := plugins[name]
		if !wanted {
			continue
		}
		setup, err := caddy.DirectiveAction("dns", name)
		if err != nil {
			t.Fatal(err)
		}
		next := caddy.NewTestController("dns", line)
		next.ServerBlockKeys = []string{"example.org."}
		if err := setup(next); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, p := range dnsserver.GetConfig(next).Plugin {
			config.AddPlugin(p)
		}
		if tls := dnsserver.GetConfig(next).TLSConfig; tls != nil {
			config.TLSConfig = tls
		}
	}
	return config
}
