package web

import (
	"net/http"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

// TestNmap: service detection identifies the servers, and reports closed ports as closed.
func TestNmap(t *testing.T) {
	world.Each(t, func(t *testing.T, w *world.World) {
		site(t, w, http.NewServeMux()) // nmap recognises the error page of net/http
		w.Nmap(t, "80,81,443", `80/tcp\s+open\s+http\s+Golang net/http server`,
			`443/tcp\s+open\s+ssl/http\s+Golang net/http server`, `81/tcp\s+closed`)
	})
}
