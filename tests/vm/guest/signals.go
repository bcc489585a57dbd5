//go:build linux

package main

import (
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/failover"
)

// signals prints what the kernel says of RDMA devices and netdevs, with the time in ns of Unix
// time, until it is killed.
func signals([]string) error {
	w, err := failover.Watch()
	if err != nil {
		return err
	}
	for s := range w.Signals() {
		fmt.Println(time.Now().UnixNano(), s.Gone, s.Name, s.Ifindex)
	}
	return nil
}
