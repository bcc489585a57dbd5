// Command icmp opens a socket for pings by golang.org/x/net/icmp.
package main

import (
	"fmt"
	"log"

	"golang.org/x/net/icmp"
)

func main() {
	c, err := icmp.ListenPacket("udp4", "0.0.0.0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.LocalAddr())
}
