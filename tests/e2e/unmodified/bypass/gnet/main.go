// Command gnet returns what it gets, by github.com/panjf2000/gnet, which has sockets of its own.
package main

import (
	"log"

	"github.com/panjf2000/gnet/v2"
)

type echo struct{ gnet.BuiltinEventEngine }

func (*echo) OnTraffic(c gnet.Conn) gnet.Action {
	b, _ := c.Next(-1)
	c.Write(b)
	return gnet.None
}

func main() { log.Fatal(gnet.Run(&echo{}, "tcp://:9000")) }
