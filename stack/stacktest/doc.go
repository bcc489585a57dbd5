// Package stacktest gives tests of servers and clients two stacks that are connected in memory. It
// needs no device, no root and no network, and tests may run in parallel:
//
//	server, client := stacktest.Pair(t)
//	ln, err := server.Listen("tcp", ":80")
//	go http.Serve(ln, handler)
//	resp, err := client.HTTPClient().Get("http://192.0.2.1/")
//
// # Leak checkers
//
// The stacks are closed by t.Cleanup, and nothing of them is left then: a leak checker needs no
// list of what to ignore, but has to look after that. With go.uber.org/goleak that is
// goleak.VerifyTestMain(m), or a cleanup that is registered first, since cleanups run backwards:
//
//	t.Cleanup(func() { goleak.VerifyNone(t) })
//	server, client := stacktest.Pair(t)
//
// "defer goleak.VerifyNone(t)" looks while the stacks are still there. Where it has to stay, close
// both stacks before:
//
//	defer goleak.VerifyNone(t)
//	server, client := stacktest.Pair(t)
//	defer server.Close()
//	defer client.Close()
//
// tests/e2e/services/leak has goleak judge all three.
package stacktest
