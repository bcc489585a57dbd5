package main

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/firewall"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// rulesTime is how long the programs that print the host's rules may take.
const rulesTime = 5 * time.Second

// warnOfRules says which rules of the host's packet filter and NAT do not go together with a server
// on the host's own address that listens on ADDRESS:PORT.
func warnOfRules(log *slog.Logger, h stack.HostStats, listen []string) {
	ports := firewall.Ports{Netdev: h.Netdev, First: h.FirstPort, Last: h.LastPort}
	for _, at := range listen {
		_, port, _ := net.SplitHostPort(at)
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports.Listen = append(ports.Listen, uint16(n))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), rulesTime)
	defer cancel()
	lines, err := firewall.Conflicts(ctx, ports)
	for _, l := range lines {
		log.Warn(l)
	}
	if err != nil {
		log.Warn("rules of the packet filter were not read, and may conflict: root may read them",
			"error", err)
	}
}
