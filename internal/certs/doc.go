// Package certs makes, stores and loads the certificates by which kvferry nodes know one another: a development
// certificate authority, node certificates that carry the node's region and id, and mutual-TLS configurations.
//
// # Usage
//
//	ca, err := certs.NewCA("dev", 0)              // ten years
//	err = ca.Save("certs")                        // certs/ca.crt, certs/ca.key
//	pair, err := ca.Issue("us-east", "node-a", "10.0.0.7")
//	err = pair.Save("certs")                      // certs/node-a.crt, certs/node-a.key
//
//	m, err := certs.Load(certs.Files{CA: "certs/ca.crt", Cert: "certs/node-a.crt", Key: "certs/node-a.key"})
//	server := m.ServerConfig()                    // TLS 1.3, client certificate required and verified
//	client := m.PeerConfig("eu-west", "node-b")   // accepts node-b of eu-west and nobody else
//
// A node's identity is exactly one URI in its certificate's subject alternative names:
//
//	spiffe://kvferry/region/<region>/node/<node>
//
// with region and node 1 to 128 bytes of [a-zA-Z0-9._-], neither "." nor "..". [Identity] reads it back and accepts
// nothing else, so that two spellings never name one node.
//
// # Concurrency
//
// A [CA], a [Pair] and a [Material] are not changed after they are made and may be used by several goroutines. Each
// call of a Config method returns a fresh [tls.Config] that the caller may change.
//
// # Limitations
//
// The authority is for development and for small fleets that keep its key offline: there is no revocation, no
// rotation and no intermediate. Keys are ECDSA P-256. Production fleets can issue the same identities from their own
// authority; nothing here depends on who signed.
package certs
