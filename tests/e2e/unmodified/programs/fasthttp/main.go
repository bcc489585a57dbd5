// Command fasthttp returns what is posted, by github.com/valyala/fasthttp.
package main

import (
	"log"

	"github.com/valyala/fasthttp"
)

func main() {
	s := &fasthttp.Server{MaxRequestBodySize: 16 << 20,
		Handler: func(c *fasthttp.RequestCtx) { c.Write(c.PostBody()) }}
	log.Fatal(s.ListenAndServe(":8000"))
}
