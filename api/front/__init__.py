"""The front of the web server: the processing of a request before and after a thread works on it.

`application.Front` is an RSGI application (granian's own interface). Its event loop reads bodies, keeps
the limits and answers what needs no thread; Django's WSGI handler runs in threads of `threads.Threads`.
"""
