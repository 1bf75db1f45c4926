"""stub"""
def markdown(rows): return ""
