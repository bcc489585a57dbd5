package web

import (
	"net/http"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/services/world"
)

// TestNmap: service detection takes the servers for what they are, and closed ports for closed.
func TestNmap(t *testing.T) {
	world.Tool(t, "nmap", `Nmap version ([\d.]+)`, "--version")
	world.Each(t, func(t *testing.T, w *world.World) {
		site(t, w, http.NewServeMux()) // it knows the error page of net/http
		out := w.Run(t, "nmap", "-n", "-Pn", "-sT", "-sV", "--min-rtt-timeout", "4s", "-p", "80,81,443", world.Server4)
		world.Want(t, out, `80/tcp\s+open\s+http\s+Golang net/http server`)
		world.Want(t, out, `443/tcp\s+open\s+ssl/http\s+Golang net/http server`)
		world.Want(t, out, `81/tcp\s+closed`)
	})
}
