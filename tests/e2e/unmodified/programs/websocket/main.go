// Command websocket returns messages, by github.com/coder/websocket.
package main

import (
	"log"
	"net/http"

	"github.com/coder/websocket"
)

func main() {
	log.Fatal(http.ListenAndServe(":8001", http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			c.SetReadLimit(-1)
			for {
				kind, b, err := c.Read(r.Context())
				if err != nil {
					return
				}
				if err := c.Write(r.Context(), kind, b); err != nil {
					return
				}
			}
		})))
}
