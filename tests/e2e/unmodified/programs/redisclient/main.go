// Command redisclient is a client of a Redis server that closes its connections again and again:
// redisclient ADDRESS. It prints "checked" once its pool has taken out five that the server had
// closed, which the pool finds by reading from the connection's descriptor.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	c := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: 2, DisableIdentity: true,
		PoolSize: 1})
	ctx := context.Background()
	for c.Ping(ctx).Err() != nil {
		time.Sleep(50 * time.Millisecond) // the server begins later
	}
	for i := 0; c.PoolStats().StaleConns < 5; i++ {
		want := strings.Repeat(fmt.Sprint(i, " "), 1+i%1000)
		if err := c.Set(ctx, "key", want, 0).Err(); err != nil {
			log.Fatal(err)
		}
		if got, err := c.Get(ctx, "key").Result(); err != nil || got != want {
			log.Fatalf("%q is %q: %v", want, got, err)
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("checked")
	select {}
}
