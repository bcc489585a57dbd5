// Command redcon keeps values in memory by github.com/tidwall/redcon.
package main

import (
	"log"
	"strings"
	"sync"

	"github.com/tidwall/redcon"
)

func main() {
	var values sync.Map
	log.Fatal(redcon.ListenAndServe(":6379", func(c redcon.Conn, cmd redcon.Command) {
		switch strings.ToLower(string(cmd.Args[0])) {
		case "set":
			values.Store(string(cmd.Args[1]), string(cmd.Args[2]))
			c.WriteString("OK")
		case "get":
			if v, ok := values.Load(string(cmd.Args[1])); ok {
				c.WriteBulkString(v.(string))
			} else {
				c.WriteNull()
			}
		case "ping":
			c.WriteString("PONG")
		default:
			c.WriteError("ERR unknown command")
		}
	}, nil, nil))
}
