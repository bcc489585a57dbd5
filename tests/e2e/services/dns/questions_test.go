package dns

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

// questions queries the server with common DNS clients, over UDP, TCP and TLS.
func questions(t *testing.T, w *world.World, id *world.Identity) {
	t.Run("dig", func(t *testing.T) {
		world.Tool(t, "dig", `DiG ([\d.]+)`, "-v")
		dig := func(args ...string) string {
			return w.Run(t, "dig", append([]string{"+tries=8", "+time=2", "+nocookie"}, args...)...)
		}
		for _, server := range []string{"@" + world.Server4, "@" + world.Server6} {
			for _, transport := range []string{"+notcp", "+tcp"} {
				world.Want(t, dig(server, transport, "www.example.org", "A"),
					`www.example.org.\s+\d+\s+IN\s+A\s+192.0.2.80`)
				world.Want(t, dig(server, transport, "absent.example.org", "A"), `status: NXDOMAIN`)
			}
			out := dig(server, "+bufsize=1232", "many.example.org", "A")
			world.Want(t, out, `Truncated, retrying in TCP mode`)
			world.Want(t, out, `ANSWER: 120,`)
		}
	})
	t.Run("kdig", func(t *testing.T) {
		world.Tool(t, "kdig", `version ([\d.]+)`, "--version")
		kdig := func(args ...string) string {
			return w.Run(t, "kdig",
				append([]string{"@" + world.Server4, "+retry=8", "+time=20"}, args...)...)
		}
		for _, transport := range []string{"+tcp", "+tls"} {
			world.Want(t, kdig(transport, "www.example.org", "AAAA"),
				`www.example.org.\s+\d+\s+IN\s+AAAA\s+2001:db8::80`)
		}
		out := kdig("+tls-ca="+id.Cert, "+tls-hostname="+world.ServerName, "many.example.org", "A")
		world.Want(t, out, `TLS session \(TLS1.3\)`)
		world.Want(t, out, `ANSWER: 120;`)
	})
	t.Run("dnsperf", func(t *testing.T) {
		world.Tool(t, "dnsperf", `DNS Performance Testing Tool\s+Version ([\d.]+)`, "-h")
		for _, mode := range []string{"udp", "tcp", "dot"} {
			port := map[string]string{"udp": "53", "tcp": "53", "dot": "853"}[mode]
			lost, wait := "0", "30"
			if w.Wire != "" && mode == "udp" { // it does not repeat the query
				lost, wait = `\d+`, "1"
			}
			out := w.Run(t, "dnsperf", "-s", world.Server4, "-p", port, "-m", mode, "-d",
				"testdata/queries", "-n", "200", "-t", wait, "-q", "50", "-c", "4")
			world.Want(t, out, `Queries sent:\s+1200\b`)
			world.Want(t, out, `Queries lost:\s+`+lost+` `)
			world.Want(t, out, `Response codes:\s+NOERROR [1-9]`)
		}
	})
}
