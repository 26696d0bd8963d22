"""Links between neighbouring stages: frames over UCX or plain sockets, behind one interface."""
