// Command tableflip serves, and on SIGHUP hands its listener to a process that takes its place, by
// github.com/cloudflare/tableflip.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/cloudflare/tableflip"
)

func main() {
	u, err := tableflip.New(tableflip.Options{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := u.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, os.Getpid())
	}))
	if err := u.Ready(); err != nil {
		log.Fatal(err)
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	for {
		select {
		case <-hup:
			fmt.Println("upgrade:", u.Upgrade())
		case <-u.Exit():
			return
		}
	}
}
