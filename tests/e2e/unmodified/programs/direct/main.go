// Command direct is programs/http with its listener from package stack: what the seam costs.
package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

const text = "0123456789abcdefghijklmnopqrstuvwxyz"

func main() {
	st, err := stack.Open(context.Background(), stack.Config{
		NIC:       dv.NIC{Device: os.Args[1]},
		Addresses: []netip.Prefix{netip.MustParsePrefix(os.Args[2])}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := st.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		io.WriteString(w, strings.Repeat(text, n/len(text)+1)[:n])
	})
	log.Fatal(http.Serve(l, nil))
}
