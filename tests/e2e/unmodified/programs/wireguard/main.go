// Command wireguard returns the datagrams that WireGuard's sockets receive, in batches and with
// UDP_SEGMENT where they may.
package main

import (
	"bytes"
	"log"

	"golang.zx2c4.com/wireguard/conn"
)

func main() {
	b := conn.NewStdNetBind()
	receive, _, err := b.Open(51820)
	if err != nil {
		log.Fatal(err)
	}
	failed := make(chan error)
	for _, f := range receive {
		go func() { failed <- echo(b, f) }()
	}
	log.Fatal(<-failed)
}

func echo(b conn.Bind, receive conn.ReceiveFunc) error {
	packets, sizes := make([][]byte, b.BatchSize()), make([]int, b.BatchSize())
	from := make([]conn.Endpoint, b.BatchSize())
	for i := range packets {
		packets[i] = make([]byte, 65535)
	}
	for {
		n, err := receive(packets, sizes, from)
		if err != nil {
			return err
		}
		for i := 0; i < n; {
			var same [][]byte
			to := from[i]
			for ; i < n && from[i].DstToString() == to.DstToString(); i++ {
				same = append(same, bytes.Clone(packets[i][:sizes[i]]))
			}
			if err := b.Send(same, to); err != nil {
				return err
			}
		}
	}
}
