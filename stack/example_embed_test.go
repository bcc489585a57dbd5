package stack_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
)

// A server that already has kernel sockets gets the slice as one more listener. Handlers, state and
// Shutdown stay one.
func ExampleStack_Listen_besideKernel() {
	server, client := twoStacks()
	defer server.Close()
	defer client.Close()

	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _,
			_ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		fmt.Fprintf(w, "hello from %s", host)
	})}
	defer srv.Close()
	onKernel, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	onSlice, err := server.Listen("tcp", "192.0.2.1:80")
	check(err)
	go srv.Serve(onKernel)
	go srv.Serve(onSlice)

	show := func(resp *http.Response, err error) {
		check(err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check(err)
		fmt.Println(string(body))
	}
	show(http.Get("http://" + onKernel.Addr().String()))
	show(client.HTTPClient().Get("http://192.0.2.1"))
	// Output:
	// hello from 127.0.0.1
	// hello from 192.0.2.1
}
