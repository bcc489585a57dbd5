package httpd

import "github.com/rdma-netstack/rdma-netstack/internal/memlimit"

// Limits of Config.MaxConns when it is not set.
const (
	connMemory = 1 << 20 // bytes in the send buffer of a peer that reads nothing
	fewConns   = 256
	manyConns  = 1 << 16
)

// connsForMemory returns the number of connections that fit into half of the memory this process
// may use.
func connsForMemory() int {
	return int(min(max(memlimit.Available()/2/connMemory, fewConns), manyConns))
}
